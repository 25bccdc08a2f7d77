"""What lossy wires do to numbers, between daemons of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

from gradwire import MismatchError
from gradwire_ops import query

if TYPE_CHECKING:
    from gradwire import Session
    from gradwire_ops.cluster import Cluster

InThreads: TypeAlias = Callable[..., list[Any]]

LOSSY = ["bf16", "fp16", "int8", "int8:rounding=stochastic", "fp8", "topk"]
DENSE = LOSSY[:-1]
ERROR = {"bf16": 2**-8, "fp16": 2**-11, "int8": 1 / 127, "fp8": 2**-4}
"""Of one crossing, as a part of the block's largest magnitude."""
LAYOUTS = [(1, 1), (2, 2), (1, 2, 1), (1, 1, 1, 1)]
SIZES = (0, 1, 3, 1000, 70_000)
SEVERAL_CHUNKS = 2_500_000


def error_of(wire: str) -> float:
    """What a mean may be off: once on the way out, and once on the way back."""
    return 2.5 * ERROR[wire.partition(":")[0]]


def gradient(rank: int, elements: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + elements)
    return torch.randn(elements, generator=generator)


@pytest.mark.case("M28")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wire", LOSSY)
def test_all_ranks_get_the_same_bits_near_the_mean(
    in_threads: InThreads, layout: tuple[int, ...], wire: str
) -> None:
    ranks, sizes = sum(layout), (*SIZES, SEVERAL_CHUNKS) if layout == (2, 2) else SIZES

    def work(session: Session) -> list[torch.Tensor]:
        tensors = [gradient(session.rank, size) for size in sizes]
        for future in [session.all_reduce(each, wire=wire) for each in tensors]:
            future.wait()
        return tensors

    first, *others = in_threads(layout, work)
    for other in others:
        assert all(map(torch.equal, first, other))
    if wire == "topk":
        return
    for size, result in zip(sizes, first, strict=True):
        inputs = [gradient(rank, size) for rank in range(ranks)]
        mean = torch.stack(inputs).mean(0)
        most = max((each.abs().max().item() for each in inputs if size), default=0.0)
        assert torch.allclose(result, mean, rtol=0, atol=error_of(wire) * most)


@pytest.mark.parametrize("wire", LOSSY)
def test_whatever_the_schedule_that_is_asked_for(
    in_scheduled_threads: InThreads, wire: str
) -> None:
    def work(session: Session) -> torch.Tensor:
        tensor = gradient(session.rank, 5000)
        return session.all_reduce(tensor, op="sum", wire=wire).wait()

    results = in_scheduled_threads((1, 2, 1, 1), work)
    assert all(torch.equal(each, results[0]) for each in results)
    if wire != "topk":
        total = torch.stack([gradient(rank, 5000) for rank in range(5)]).sum(0)
        assert torch.allclose(results[0], total, rtol=0, atol=5 * error_of(wire) * 4.5)


@pytest.mark.case("M05")
@pytest.mark.parametrize("layout", [(3, 1), (2, 1, 1)])
@pytest.mark.parametrize("wire", LOSSY)
def test_ranks_count_alike_over_every_wire(
    in_threads: InThreads, layout: tuple[int, ...], wire: str
) -> None:
    def work(session: Session) -> float:
        tensor = torch.tensor([(1.0, 2.0, 3.0, 10.0)[session.rank]])
        return session.all_reduce(tensor, wire=wire).wait().item()

    # A block's largest element comes out as it was.
    assert in_threads(layout, work) == pytest.approx([4.0] * 4, rel=1e-6)


@pytest.mark.case("M06")
@pytest.mark.parametrize(
    ("layout", "dtype", "value"),
    [
        ((2, 2), torch.float16, 40000.0),
        ((4, 4), torch.float16, 2.0**-24),
        ((1, 1), torch.float32, 3e38),
        ((1, 1, 1), torch.float32, 3e38),
        ((1, 1), torch.float32, 1e-40),
    ],
)
@pytest.mark.parametrize("wire", LOSSY)
def test_means_neither_overflow_nor_vanish_over_any_wire(
    in_threads: InThreads,
    layout: tuple[int, ...],
    dtype: torch.dtype,
    value: float,
    wire: str,
) -> None:
    def work(session: Session) -> list[float]:
        tensor = torch.full((300,), value, dtype=dtype)
        found: list[float] = session.all_reduce(tensor, wire=wire).wait().tolist()
        return [each for each in found if each] if wire == "topk" else found

    for found in in_threads(layout, work):
        assert found
        assert found == pytest.approx([value] * len(found), rel=2**-7)


@pytest.mark.case("M14")
@pytest.mark.parametrize("wire", ["int8", "fp8"])
def test_each_nodes_own_scale_is_undone_before_anything_is_added(
    in_threads: InThreads, wire: str
) -> None:
    def work(session: Session) -> torch.Tensor:
        tensor = torch.full((1000,), (1.0, 0.001)[session.rank])
        return session.all_reduce(tensor, wire=wire).wait()

    for result in in_threads((1, 1), work):
        assert torch.allclose(result, torch.full((1000,), 0.5005), rtol=0, atol=0.5 / 127 / 2)


@pytest.mark.parametrize("layout", [(1, 1), (1, 1, 1)])
def test_zeros_stay_zeros_and_an_outlier_spares_its_neighbours(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    def work(session: Session) -> tuple[torch.Tensor, torch.Tensor]:
        zeros, peak = torch.zeros(2000), torch.full((2000,), 0.3)
        peak[77] = 1000.0
        for tensor in (zeros, peak):
            session.all_reduce(tensor, wire="int8").wait()
        return zeros, peak

    for zeros, peak in in_threads(layout, work):
        assert not zeros.any()
        assert peak[77] == pytest.approx(1000.0)
        half_a_step = 1000 / 127 / 2
        assert ((peak - 0.3).abs()[torch.arange(2000) != 77] <= 1.01 * half_a_step).all()


@pytest.mark.case("M08")
@pytest.mark.parametrize("layout", [(2, 2), (1, 2, 1)])
@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize(
    "brought",
    [{3: math.nan}, {3: math.inf}, {3: -math.inf}, {0: math.inf, 3: -math.inf}],
    ids=["nan", "inf", "-inf", "inf and -inf"],
)
def test_what_is_not_finite_stays_in_its_element_on_all_ranks(
    in_threads: InThreads, layout: tuple[int, ...], wire: str, brought: dict[int, float]
) -> None:
    def work(session: Session) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for _ in range(2):
            tensor = gradient(session.rank, 3000)
            tensor[7] = brought.get(session.rank, 1.0) if not results else 1.0
            results.append(session.all_reduce(tensor, wire=wire, name="w").wait())
        return results

    results = in_threads(layout, work)
    expected = sum(brought.values())
    for bad, good in results:
        assert torch.equal(bad.isfinite(), torch.arange(3000) != 7)
        assert torch.equal(bad[7], torch.tensor(expected)) or math.isnan(expected)
        assert torch.equal(good, results[0][1])
        assert good.isfinite().all(), "what is fed back must not bring it again"


def test_only_sums_and_means_of_floats_lose_anything(in_threads: InThreads) -> None:
    def work(session: Session) -> list[bool]:
        exact = []
        for dtype, op in [
            (torch.float64, "mean"),
            (torch.float32, "max"),
            (torch.float32, "product"),
            (torch.int32, "sum"),
            (torch.int64, "mean"),
            (torch.bool, "sum"),
        ]:
            pair = [(gradient(session.rank, 999) * 50).to(dtype) for _ in range(2)]
            session.all_reduce(pair[0], op=op, wire="topk").wait()
            session.all_reduce(pair[1], op=op, wire="exact").wait()
            exact.append(torch.equal(*pair))
        return exact

    assert in_threads((1, 1), work) == [[True] * 6] * 2


@pytest.mark.case("M25")
@pytest.mark.parametrize("layout", [(1,), (4,)])
@pytest.mark.parametrize("wire", LOSSY)
def test_where_nothing_crosses_a_wire_nothing_is_lost(
    in_threads: InThreads, layout: tuple[int], wire: str
) -> None:
    def work(session: Session) -> bool:
        tensor = torch.full((3000,), 1 / 3) * (session.rank + 1)
        session.all_reduce(tensor, op="max", wire="exact").wait()
        result = session.all_reduce(tensor.clone(), wire=wire, name="w").wait()
        return torch.allclose(result, tensor, rtol=1e-6, atol=0)

    assert all(in_threads(layout, work))


@pytest.mark.case("M31")
@pytest.mark.parametrize("layout", [(1, 1), (2,)])
@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ({"wire": "int8"}, {"wire": "bf16"}, "over wire int8"),
        ({"wire": "topk:ratio=0.5"}, {"wire": "topk"}, "ratio 0.5"),
        ({"wire": "int8", "name": "a"}, {"wire": "int8", "name": "b"}, "named"),
        ({"wire": "int8"}, {"wire": "exact"}, "over wire int8"),
    ],
)
def test_ranks_that_choose_otherwise_are_told_so(
    in_threads: InThreads,
    layout: tuple[int, ...],
    mine: dict[str, str],
    theirs: dict[str, str],
    words: str,
) -> None:
    def work(session: Session) -> str:
        chosen = theirs if session.rank else mine
        with pytest.raises(MismatchError) as caught:
            session.all_reduce(torch.ones(100), **chosen).wait()  # type: ignore[arg-type]
        assert session.all_reduce(torch.ones(1), wire="int8").wait() == 1, "it goes on"
        return str(caught.value)

    for text in in_threads(layout, work):
        assert "All ranks must call the same collectives" in text
        assert words in text


def test_wires_that_do_not_exist_are_refused_with_those_that_do(
    in_threads: InThreads,
) -> None:
    def work(session: Session) -> None:
        with pytest.raises(ValueError, match="exact, bf16, fp16, int8, fp8, topk, got 'int4'"):
            session.all_reduce(torch.ones(3), wire="int4")

    in_threads((1,), work)


@pytest.mark.parametrize(
    ("wire", "most"),
    [
        ("exact", 1.0),
        ("bf16", 0.5),
        ("fp16", 0.5),
        ("int8", 0.27),
        ("fp8", 0.27),
        ("topk", 0.02),
    ],
)
@pytest.mark.parametrize("layout", [(1, 1), (1, 1, 1)])
def test_so_many_bytes_cross_the_wire(
    in_threads: InThreads,
    daemons: Cluster,
    wire: str,
    most: float,
    layout: tuple[int, ...],
) -> None:
    def work(session: Session) -> float:
        before = sent(daemons.addresses[session.node], session.generation)
        tensor = gradient(session.rank, 1 << 22)
        session.all_reduce(tensor, wire=wire).wait()
        # The last of it may be on its way.
        session.all_reduce(torch.ones(1)).wait()
        after = sent(daemons.addresses[session.node], session.generation)
        return (after - before) / tensor.nbytes

    ways = 2 * (len(layout) - 1) / len(layout)
    for share in in_threads(layout, work):
        assert share <= ways * (most + 0.01)
        assert share >= ways * most * 0.5, "and this counts them"


def sent(address: str, generation: str) -> int:
    """Bytes that a daemon has sent to others for this job."""
    jobs = query.status(address).jobs
    return sum(
        link.bytes_sent for job in jobs if job.generation == generation for link in job.links
    )
