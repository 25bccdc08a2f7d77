from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

import gradwire

if TYPE_CHECKING:
    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]
Bring: TypeAlias = Callable[[int], "tuple[torch.Tensor, str]"]

WITHIN_SECONDS = 1.0
LAYOUTS = [(2,), (1, 1), (2, 2)]


def refusal(session: Session, tensor: torch.Tensor, op: str = "mean") -> str:
    """The text of the MismatchError, which came in time."""
    began = time.monotonic()
    with pytest.raises(gradwire.MismatchError) as caught:
        session.all_reduce(tensor, op=op).wait()
    assert time.monotonic() - began < WITHIN_SECONDS
    return str(caught.value)


def mean_of_ones(session: Session) -> float:
    return session.all_reduce(torch.ones(3)).wait().sum().item() / 3


def odd_one_out(session: Session) -> bool:
    return session.rank == session.world_size - 1


CONTRIBUTIONS: dict[str, tuple[Callable[[bool], torch.Tensor], list[str]]] = {
    "dtype of equal size": (
        lambda odd: torch.ones(6, dtype=torch.bfloat16 if odd else torch.float16),
        ["float16", "bfloat16"],
    ),
    "number of elements": (
        lambda odd: torch.ones(11 if odd else 7),
        ["7 x float32", "11 x float32"],
    ),
    "shape of equal size": (
        lambda odd: torch.ones((6, 4) if odd else (4, 6)),
        ["[4x6]", "[6x4]"],
    ),
    "nothing and something": (lambda odd: torch.ones(5 if odd else 0), ["of 0 x", "of 5 x"]),
    "number of chunks": (
        lambda odd: torch.ones(9 if odd else 3_000_000),
        ["3000000 x float32", "9 x float32"],
    ),
    "more chunks than slots": (
        lambda odd: torch.ones(11_000_000 if odd else 12_000_000),
        ["11000000", "12000000"],
    ),
}


@pytest.mark.case("M31")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("difference", CONTRIBUTIONS)
def test_all_ranks_hear_at_once_what_differs_and_can_go_on(
    in_threads: InThreads, layout: tuple[int, ...], difference: str
) -> None:
    make, words = CONTRIBUTIONS[difference]

    def work(session: Session) -> tuple[float, str, float]:
        before = mean_of_ones(session)
        text = refusal(session, make(odd_one_out(session)))
        return before, text, mean_of_ones(session)

    world = sum(layout)
    for before, text, after in in_threads(layout, work):
        assert before == after == 1.0
        assert "round 1:" in text
        for word in words:
            assert word in text
        # The one who differs is named, itself or by its node, beside one who does not.
        assert re.search(rf"rank {world - 1}\b|\(ranks .*\b{world - 1}\)", text)
        assert re.search(r"rank [0-2]\b|\(ranks 0\b", text)


@pytest.mark.case("M31")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_different_ops_are_not_mixed(in_threads: InThreads, layout: tuple[int, ...]) -> None:
    def work(session: Session) -> tuple[str, float]:
        op = "sum" if odd_one_out(session) else "mean"
        return refusal(session, torch.ones(4), op=op), mean_of_ones(session)

    for text, after in in_threads(layout, work):
        assert "mean of 4 x float32" in text
        assert "sum of 4 x float32" in text
        assert after == 1.0


@pytest.mark.case("M31")
def test_a_skipped_collective_is_found_at_the_next_one(in_threads: InThreads) -> None:
    def work(session: Session) -> tuple[str, float]:
        sizes = (8, 24) if odd_one_out(session) else (8, 16)
        session.all_reduce(torch.ones(sizes[0])).wait()
        return refusal(session, torch.ones(sizes[1])), mean_of_ones(session)

    for text, after in in_threads((1, 2), work):
        assert "round 1:" in text
        assert "16 x float32" in text
        assert "24 x float32" in text
        assert after == 1.0


def test_collectives_on_their_way_are_not_harmed_by_one_that_fails(
    in_threads: InThreads,
) -> None:
    def work(session: Session) -> tuple[list[set[float]], int]:
        sizes = [1_000_000, 3, 2_000_000, 5, 700_000, 1, 4]
        futures = [
            session.all_reduce(
                torch.full((size + (index % 2) * session.rank,), session.rank + 1.0)
            )
            for index, size in enumerate(sizes)
        ]
        refused = 0
        results = []
        for index, future in enumerate(futures):
            if index % 2:
                with pytest.raises(gradwire.MismatchError, match=f"round {index}:"):
                    future.wait()
                refused += 1
            else:
                results.append(set(future.wait().tolist()))
        return results, refused

    assert in_threads((1, 1, 1), work) == [([{2.0}] * 4, 3)] * 3


def test_a_hundred_failures_leave_nothing_behind(in_threads: InThreads) -> None:
    def work(session: Session) -> float:
        for _ in range(100):
            refusal(session, torch.ones(600_000 + session.rank))
        return mean_of_ones(session)

    assert in_threads((2, 1), work) == [1.0] * 3
