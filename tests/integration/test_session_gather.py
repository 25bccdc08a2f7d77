"""All-gather and reduce-scatter over real daemons, on both paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

import gradwire

if TYPE_CHECKING:
    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]

LAYOUTS = [(3,), (2, 2), (1, 1, 1)]
CHUNK_BYTES = 4096
"""As the scheduled daemons have it; see conftest."""

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.int64,
]

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)


@pytest.fixture(params=["shared_memory", "stream"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the tensors travel."""
    if request.param == "stream":
        monkeypatch.setenv("GRADWIRE_SHM", "off")
    return str(request.param)


def ranges(world: int, elements: int, kind: str) -> list[tuple[int, int]]:
    """What each rank brings, or takes, of so many elements."""
    if kind == "root":
        return [(0, elements) if rank == world - 1 else (0, 0) for rank in range(world)]
    if kind == "first":
        return [(0, elements) if rank == 0 else (0, 0) for rank in range(world)]
    ends = [rank * elements // world for rank in range(world + 1)]
    if kind == "uneven":
        # One rank has a single element, if there is any, and the next one nothing.
        ends = sorted([0, *[min(1, elements)] * min(2, world - 1), *ends[3:-1], elements])
    parts = [(ends[rank], ends[rank + 1]) for rank in range(world)]
    return parts[::-1] if kind == "backwards" else parts


KINDS = ["even", "uneven", "backwards", "root", "first"]
SIZES = [0, 1, 2, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES + 3]


def noise(elements: int, seed: int) -> torch.Tensor:
    """Bytes."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (elements,), generator=draw, dtype=torch.uint8)


def gathered(session: Session, elements: int, kind: str) -> bool:
    """Whether everything came that should."""
    whole = noise(elements, 7)
    tensor = noise(elements, session.rank)
    start, stop = ranges(session.world_size, elements, kind)[session.rank]
    tensor[start:stop] = whole[start:stop]
    future = session.all_gather(tensor, (start, stop))
    return future.wait() is tensor and torch.equal(tensor, whole)


@every_layout
def test_every_rank_ends_with_what_all_have_brought(
    in_scheduled_threads: InThreads, layout: tuple[int, ...], path: str
) -> None:
    def work(session: Session) -> list[tuple[int, str]]:
        assert session.path == path
        cases = [(elements, kind) for elements in SIZES for kind in KINDS]
        return [each for each in cases if not gathered(session, *each)]

    assert in_scheduled_threads(layout, work) == [[]] * sum(layout)


@every_layout
def test_large_tensors_are_gathered_too(
    in_threads: InThreads, layout: tuple[int, ...], path: str
) -> None:
    def work(session: Session) -> list[str]:
        return [kind for kind in KINDS if not gathered(session, (9 << 20) + 1, kind)]

    assert in_threads(layout, work) == [[]] * sum(layout)


@every_layout
def test_bits_of_every_dtype_are_carried_as_they_are(
    in_threads: InThreads, layout: tuple[int, ...], path: str
) -> None:
    """Random bytes are NaNs of many kinds, and zeros of both signs."""
    count = 300

    def work(session: Session) -> list[torch.dtype]:
        start, stop = ranges(session.world_size, count, "uneven")[session.rank]
        wrong = []
        for dtype in DTYPES:
            size = dtype.itemsize
            data = noise(count * size, 7)
            if dtype == torch.bool:
                data %= 2
            tensor = torch.zeros(count, dtype=dtype)
            mine = slice(start * size, stop * size)
            tensor.view(torch.uint8)[mine] = data[mine]
            session.all_gather(tensor, (start, stop)).wait()
            if not torch.equal(tensor.view(torch.uint8), data):
                wrong.append(dtype)
        return wrong

    assert in_threads(layout, work) == [[]] * sum(layout)


@every_layout
def test_what_nobody_brings_becomes_zero(
    in_threads: InThreads, layout: tuple[int, ...], path: str
) -> None:
    def work(session: Session) -> list[int]:
        session.all_reduce(torch.full((50_000,), 7, dtype=torch.uint8), op="max").wait()
        tensor = torch.full((3 * CHUNK_BYTES,), session.rank + 1, dtype=torch.uint8)
        session.all_gather(tensor, (5, 9) if session.rank == 1 else (0, 0)).wait()
        return list(tensor.unique_consecutive().tolist())

    assert in_threads(layout, work) == [[0, 2, 0]] * sum(layout)


@every_layout
def test_a_rank_gets_its_part_of_the_sum_and_keeps_the_rest(
    in_scheduled_threads: InThreads, layout: tuple[int, ...], path: str
) -> None:
    def brought(rank: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        draw = torch.Generator().manual_seed(rank)
        return (100 * torch.randn(elements, generator=draw)).to(dtype)

    def wrong(session: Session, elements: int, kind: str, op: str, dtype: torch.dtype) -> bool:
        start, stop = ranges(session.world_size, elements, kind)[session.rank]
        own = brought(session.rank, elements, dtype)
        expected = session.all_reduce(own.clone(), op=op).wait()
        expected[:start], expected[stop:] = own[:start], own[stop:]
        kept, out = own.clone(), torch.empty(stop - start, dtype=dtype)
        session.reduce_scatter(own, (start, stop), op=op, out=out).wait()
        beside = torch.equal(own, kept) and torch.equal(out, expected[start:stop])
        result = session.reduce_scatter(own, (start, stop), op=op).wait()
        return result is not own or not torch.equal(own, expected) or not beside

    def work(session: Session) -> list[tuple[int, str]]:
        sizes = [0, 1, CHUNK_BYTES // 4, 3 * CHUNK_BYTES // 4 + 1]
        kinds = ["even", "uneven", "root"]
        return [
            (elements, kind)
            for elements in sizes
            for kind in kinds
            for op in ("sum", "mean", "max")
            for dtype in (torch.float32, torch.bfloat16, torch.int16)
            if wrong(session, elements, kind, op, dtype)
        ]

    assert in_scheduled_threads(layout, work) == [[]] * sum(layout)


def test_complex_numbers_are_scattered_by_element(in_threads: InThreads, path: str) -> None:
    def work(session: Session) -> list[complex]:
        tensor = torch.tensor([1 + 2j, 3j, 5, 7 - 1j])
        session.reduce_scatter(tensor, (1, 3), weight=None).wait()
        return list(tensor.tolist())

    assert in_threads((2, 1), work) == [[1 + 2j, 9j, 15, 7 - 1j]] * 3


def test_weights_count_in_a_scattered_mean(in_threads: InThreads) -> None:
    def work(session: Session) -> list[float]:
        tensor = torch.full((3,), session.rank + 1.0)
        session.reduce_scatter(tensor, (1, 2), "mean", weight=session.rank * 2.0 + 1.0).wait()
        return list(tensor.tolist())

    assert in_threads((1, 1), work) == [[1, 1.75, 1], [2, 1.75, 2]]


@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_what_differs_is_found_out_and_the_session_goes_on(
    in_threads: InThreads, layout: tuple[int, ...], path: str
) -> None:
    def attempts(session: Session, *, odd: bool) -> list[Callable[[], Any]]:
        tensor, kind = torch.ones(8), torch.float32 if odd else torch.int32
        return [
            lambda: session.all_gather(torch.ones(9 if odd else 8), (0, 0)),
            lambda: session.all_gather(torch.ones(8, dtype=kind), (0, 0)),
            lambda: (
                session.all_gather(tensor, (0, 0))
                if odd
                else session.all_reduce(tensor.view(torch.uint8), op="max")
            ),
            lambda: (
                session.reduce_scatter(tensor, (0, 0))
                if odd
                else session.all_reduce(tensor, op="sum")
            ),
        ]

    def work(session: Session) -> bool:
        for attempt in attempts(session, odd=session.rank == 1):
            with pytest.raises(gradwire.MismatchError, match="brought"):
                attempt().wait()
            assert gathered(session, 100, "even")
        return True

    assert in_threads(layout, work) == [True, True]


@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_many_collectives_of_all_kinds_may_be_on_their_way(
    in_threads: InThreads, layout: tuple[int, ...], path: str
) -> None:
    def work(session: Session) -> bool:
        futures = []
        for number in range(40):
            part = (0, 50_000) if session.rank else (50_000, 100_000)
            futures += [
                session.all_gather(torch.full((100_000,), session.rank + number), part),
                session.reduce_scatter(torch.full((100_000,), number), part, "max"),
                session.all_reduce(torch.tensor([number]), op="bor"),
            ]
        values = [future.wait() for future in futures]
        return all(
            values[3 * number].tolist() == [number + 1] * 50_000 + [number] * 50_000
            and values[3 * number + 1].unique().tolist() == [number]
            and values[3 * number + 2].item() == number
            for number in range(40)
        )

    assert in_threads(layout, work) == [True, True]
