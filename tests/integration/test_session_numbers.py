from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

if TYPE_CHECKING:
    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]

SEVERAL_CHUNKS = 5000
"""Elements that are several chunks of the scheduled clusters, in every dtype."""


def reduced(
    session: Session,
    value: float,
    op: str = "mean",
    weight: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> float:
    """One number, brought by this rank and reduced."""
    tensor = torch.tensor([value], dtype=dtype)
    return session.all_reduce(tensor, op=op, weight=weight).wait().item()


def filled(session: Session, value: float, dtype: torch.dtype = torch.float32) -> set[float]:
    """All different numbers in the mean of tensors that are this value everywhere."""
    tensor = torch.full((SEVERAL_CHUNKS,), value, dtype=dtype)
    session.all_reduce(tensor).wait()
    return set(tensor.tolist())


@pytest.mark.case("M03")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
@pytest.mark.parametrize(("op", "expected"), [("mean", 2.0), ("sum", 4.0)])
def test_a_mean_is_divided_once_and_a_sum_never(
    in_threads: InThreads, layout: tuple[int, ...], op: str, expected: float
) -> None:
    def work(session: Session) -> float:
        return reduced(session, (1.0, 3.0)[session.rank], op=op)

    assert in_threads(layout, work) == [expected, expected]


@pytest.mark.case("M05")
def test_ranks_count_alike_however_many_share_a_node(in_scheduled_threads: InThreads) -> None:
    def work(session: Session) -> tuple[float, set[float]]:
        value = (1.0, 2.0, 3.0, 10.0)[session.rank]
        return reduced(session, value), filled(session, value)

    assert in_scheduled_threads((3, 1), work) == [(4.0, {4.0})] * 4


@pytest.mark.case("M05")
def test_three_nodes_with_one_two_and_four_ranks(in_scheduled_threads: InThreads) -> None:
    def work(session: Session) -> tuple[float, set[float]]:
        value = session.rank + 1.0
        return reduced(session, value), filled(session, value)

    # The mean of the nodes' means would be 3.0.
    assert in_scheduled_threads((1, 2, 4), work) == [(4.0, {4.0})] * 7


@pytest.mark.case("M06")
@pytest.mark.parametrize(
    ("layout", "dtype", "value"),
    [
        ((2, 2), torch.float16, 40000.0),
        ((4, 4), torch.float16, 2.0**-24),
        ((2,), torch.float32, 3e38),
        ((1, 1), torch.float32, 3e38),
        ((1, 1), torch.float64, 1.7e308),
    ],
)
def test_means_neither_overflow_nor_vanish(
    in_threads: InThreads, layout: tuple[int, ...], dtype: torch.dtype, value: float
) -> None:
    exact = torch.tensor(value, dtype=dtype).item()

    def work(session: Session) -> tuple[float, set[float]]:
        return reduced(session, value, dtype=dtype), filled(session, value, dtype)

    assert in_threads(layout, work) == [(exact, {exact})] * sum(layout)


@pytest.mark.case("M06")
def test_a_sum_overflows_as_its_dtype_does(in_threads: InThreads) -> None:
    def work(session: Session) -> float:
        return reduced(session, 3e38, op="sum")

    assert in_threads((1, 1), work) == [float("inf")] * 2


@pytest.mark.case("M07")
def test_bfloat16_is_rounded_once_wherever_the_large_number_is(
    in_scheduled_threads: InThreads,
) -> None:
    def work(session: Session) -> list[set[float]]:
        return [
            filled(session, 256.0 if session.rank == large else 1.0, torch.bfloat16)
            for large in range(session.world_size)
        ]

    # 32.0 where partial sums are rounded to bfloat16.
    assert in_scheduled_threads((2, 2, 2, 2), work) == [[{33.0}] * 8] * 8


@pytest.mark.case("M07")
def test_bfloat16_is_rounded_once_in_chunks_of_the_usual_size(in_threads: InThreads) -> None:
    def work(session: Session) -> list[set[float]]:
        means = []
        for large in (0, 5):
            value = 256.0 if session.rank == large else 1.0
            tensor = torch.full((1_000_000,), value, dtype=torch.bfloat16)
            means.append(set(session.all_reduce(tensor).wait().unique().tolist()))
        return means

    assert in_threads((2, 2, 2, 2), work) == [[{33.0}] * 2] * 8


@pytest.mark.parametrize("layout", [(2,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_mean_with_weights_counts_samples(
    in_threads: InThreads, layout: tuple[int, ...], dtype: torch.dtype
) -> None:
    def work(session: Session) -> tuple[float, float]:
        value, weight = ((4.0, 1.0), (8.0, 3.0))[session.rank]
        plain = reduced(session, value, dtype=dtype)
        return plain, reduced(session, value, dtype=dtype, weight=weight)

    assert in_threads(layout, work) == [(6.0, 7.0)] * 2


@pytest.mark.parametrize(
    ("op", "expected"),
    [("sum", 10.0), ("mean", 2.5), ("min", 1.0), ("max", 4.0), ("product", 24.0)],
)
def test_every_schedule_knows_every_op(
    in_scheduled_threads: InThreads, op: str, expected: float
) -> None:
    def work(session: Session) -> set[float]:
        tensor = torch.full((SEVERAL_CHUNKS,), session.rank + 1.0)
        return set(session.all_reduce(tensor, op=op).wait().tolist())

    assert in_scheduled_threads((2, 1, 1), work) == [{expected}] * 4


def test_every_rank_gets_the_same_bits_in_every_run(in_scheduled_threads: InThreads) -> None:
    def work(session: Session) -> list[float]:
        random = torch.Generator().manual_seed(session.rank)
        tensor = torch.randn(SEVERAL_CHUNKS, generator=random)
        values: list[float] = session.all_reduce(tensor).wait().tolist()
        return values

    first = in_scheduled_threads((1, 2, 1), work)
    assert first == [first[0]] * 4
    assert in_scheduled_threads((1, 2, 1), work) == first


def test_what_is_not_a_number_stays_where_it_was(in_threads: InThreads) -> None:
    def work(session: Session) -> list[str]:
        tensor = torch.ones(5)
        if session.rank == 2:
            tensor[1], tensor[3] = float("nan"), float("inf")
        if session.rank == 3:
            tensor[4] = float("-inf")
        return [str(value) for value in session.all_reduce(tensor).wait().tolist()]

    assert in_threads((2, 2), work) == [["1.0", "nan", "1.0", "inf", "-inf"]] * 4


def test_means_of_integers_are_truncated_and_do_not_overflow(in_threads: InThreads) -> None:
    def work(session: Session) -> tuple[list[int], list[int]]:
        small = torch.tensor([100, -1, 3], dtype=torch.int8)
        small += session.rank * torch.tensor([20, -2, 4], dtype=torch.int8)
        large = torch.tensor([2**53 + 1, 2**61 + session.rank], dtype=torch.int64)
        session.all_reduce(small).wait()
        return small.tolist(), session.all_reduce(large).wait().tolist()

    assert in_threads((1, 1), work) == [([110, -2, 5], [2**53 + 1, 2**61])] * 2
