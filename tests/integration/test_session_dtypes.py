from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

if TYPE_CHECKING:
    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]

BROUGHT = ((1, 2, 3), (4, 6, 9))
"""By rank 0 and by rank 1."""

ANSWERS: dict[str, list[float]] = {
    "sum": [5, 8, 12],
    "mean": [2.5, 4, 6],
    "max": [4, 6, 9],
    "min": [1, 2, 3],
    "product": [4, 12, 27],
}
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
REFUSED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16]


def attempt(session: Session, dtype: torch.dtype, op: str) -> list[complex] | str:
    """The result, or the text of a TypeError."""
    tensor = torch.tensor(BROUGHT[session.rank], dtype=torch.float32).to(dtype)
    if dtype.is_complex:
        tensor *= 1 + 2j
    try:
        values: list[complex] = session.all_reduce(tensor, op=op).wait().tolist()
    except TypeError as error:
        return str(error)
    return values


def every_op(session: Session, dtype: torch.dtype) -> dict[str, list[complex] | str]:
    outcomes = {op: attempt(session, dtype, op) for op in ANSWERS}
    assert attempt(session, torch.float32, "mean") == ANSWERS["mean"], "still usable"
    return outcomes


@pytest.mark.case("M22")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_know_every_op(
    in_threads: InThreads, layout: tuple[int, ...], dtype: torch.dtype
) -> None:
    results = in_threads(layout, lambda session: every_op(session, dtype))
    assert results == [ANSWERS, ANSWERS]


@pytest.mark.case("M22")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_know_every_op_and_truncate_their_mean(
    in_threads: InThreads, layout: tuple[int, ...], dtype: torch.dtype
) -> None:
    results = in_threads(layout, lambda session: every_op(session, dtype))
    assert results == [{**ANSWERS, "mean": [2, 4, 6]}] * 2


@pytest.mark.case("M22")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_integers_are_reduced_bit_by_bit_and_floats_are_not(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    def work(session: Session) -> list[dict[str, list[complex] | str]]:
        return [
            {op: attempt(session, dtype, op) for op in ("band", "bor", "bxor")}
            for dtype in (*INTEGERS, torch.float32)
        ]

    for outcomes in in_threads(layout, work):
        *integers, floats = outcomes
        assert integers == [{"band": [0, 2, 1], "bor": [5, 6, 11], "bxor": [5, 4, 10]}] * 5
        for op, text in floats.items():
            assert text == (
                f"op {op} has no meaning for torch.float32; expected an integer or bool"
            )


@pytest.mark.case("M22")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_bools_are_reduced_by_logic_and_have_no_mean(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    def work(session: Session) -> dict[str, list[bool] | str]:
        outcomes: dict[str, list[bool] | str] = {}
        for op in ("sum", "max", "bor", "product", "min", "band", "bxor", "mean"):
            tensor = torch.tensor([False, session.rank == 1, True])
            try:
                outcomes[op] = session.all_reduce(tensor, op=op).wait().tolist()
            except TypeError as error:
                outcomes[op] = str(error)
        return outcomes

    either, both = [False, True, True], [False, False, True]
    expected = {
        **dict.fromkeys(("sum", "max", "bor"), either),
        **dict.fromkeys(("product", "min", "band"), both),
        "bxor": [False, True, False],
        "mean": "op mean has no meaning for torch.bool; expected a number",
    }
    assert in_threads(layout, work) == [expected] * 2


@pytest.mark.case("M22")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_numbers_know_sum_and_mean(
    in_threads: InThreads, layout: tuple[int, ...], dtype: torch.dtype
) -> None:
    for outcomes in in_threads(layout, lambda session: every_op(session, dtype)):
        for op in ("sum", "mean"):
            assert outcomes[op] == [value * (1 + 2j) for value in ANSWERS[op]]
        for op in ("max", "min", "product"):
            assert op in outcomes[op]
            assert str(dtype) in outcomes[op]


@pytest.mark.case("M22")
@pytest.mark.parametrize("dtype", REFUSED)
def test_other_dtypes_are_refused_on_every_rank_with_dtype_and_op(
    in_threads: InThreads, dtype: torch.dtype
) -> None:
    for outcomes in in_threads((1, 1), lambda session: every_op(session, dtype)):
        for op, text in outcomes.items():
            assert isinstance(text, str), f"{op} of {dtype} gave {text}"
            assert str(dtype) in text
            assert op in text


@pytest.mark.case("M22")
def test_negative_integers_are_truncated_towards_zero(in_threads: InThreads) -> None:
    def work(session: Session) -> list[int]:
        tensor = torch.tensor([(-1, 7), (-2, -8)][session.rank])
        values: list[int] = session.all_reduce(tensor).wait().tolist()
        return values

    assert in_threads((1, 1), work) == [[-1, 0]] * 2
