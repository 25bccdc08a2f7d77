"""A token says what its maker said, to whoever has the same key, until it expires."""

from __future__ import annotations

import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.tokens import LONGEST, Claim, make, read

KEY, OTHER = b"k" * 32, b"o" * 32
CLAIM = Claim("night-run", "0-3,8")
LATER = int(time.time()) + 3600


def test_a_token_says_what_its_maker_said() -> None:
    assert read(KEY, make(KEY, CLAIM, LATER)) == CLAIM
    assert read(KEY, make(KEY, Claim("job"))) == Claim("job", "*")


@pytest.mark.parametrize(
    ("ranks", "covered"), [("*", {0, 3, 8, 4, 999}), ("0-3,8", {0, 3, 8}), ("4", {4})]
)
def test_which_seats_it_covers(ranks: str, covered: set[int]) -> None:
    claim = CLAIM._replace(ranks=ranks)
    assert {rank for rank in (0, 3, 4, 8, 999) if claim.covers(rank)} == covered


def test_an_old_one_is_none() -> None:
    with pytest.raises(ValueError, match="expired"):
        read(KEY, make(KEY, CLAIM, int(time.time()) - 5))


@given(place=st.integers(0), letter=st.characters(categories=["L", "N", "P"]))
def test_one_changed_letter_makes_it_worthless(place: int, letter: str) -> None:
    token = make(KEY, CLAIM, LATER)
    # The last letter has bits that stand for nothing.
    place %= len(token) - 1
    changed = token[:place] + letter + token[place + 1 :]
    if changed != token:
        with pytest.raises(ValueError, match="not good here"):
            read(KEY, changed)


@pytest.mark.parametrize("token", ["", ".", "a.b.c", "x" * (LONGEST + 1), "\udc80.a", "é.é.é"])
def test_what_was_never_a_token(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        read(KEY, token)


@pytest.mark.parametrize(
    ("said", "key", "algorithm"),
    [
        ({"sub": "job", "ranks": "*"}, OTHER, "HS256"),
        ({"sub": "job", "ranks": "*"}, "", "none"),
        ({"sub": "job", "ranks": "*"}, KEY, "HS384"),
        ({"sub": "job"}, KEY, "HS256"),
        ({"ranks": "*"}, KEY, "HS256"),
        ({"sub": "job", "ranks": 3}, KEY, "HS256"),
        ({"sub": "job", "ranks": "all"}, KEY, "HS256"),
        ({"sub": "a/b", "ranks": "*"}, KEY, "HS256"),
    ],
)
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_what_says_less_or_is_signed_otherwise(
    said: dict[str, Any], key: bytes | str, algorithm: str
) -> None:
    with pytest.raises(ValueError, match=r"expected|not good here"):
        read(KEY, jwt.encode(said, key, algorithm))


@pytest.mark.parametrize(
    "claim",
    [
        ("a/b", "*"),
        ("", "*"),
        ("a" * 65, "*"),
        ("a", "0-"),
        ("a", "all"),
        ("a", ""),
        ("a", "8-3"),
    ],
)
def test_what_cannot_be_said(claim: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make(KEY, Claim(*claim))


def test_a_key_that_could_be_guessed_makes_none() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        make(b"secret", CLAIM)
