"""Ranks that count for more or less in a mean."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session
from gradwire_ops.cluster import cluster

InThreads: TypeAlias = Callable[..., list[Any]]
InProcesses: TypeAlias = Callable[..., list[Any]]

SEVERAL_CHUNKS = 5000
"""Elements that are several chunks of the scheduled clusters."""

NAN = float("nan")


def mean(
    session: Session,
    value: float,
    elements: int = 1,
    op: str = "mean",
    weight: float | None = None,
) -> set[float]:
    tensor = torch.full((elements,), value)
    return set(session.all_reduce(tensor, op, weight).wait().tolist())


def test_the_weight_of_the_session_is_for_means_without_one(in_threads: InThreads) -> None:
    def work(session: Session) -> list[set[float]]:
        value = (4.0, 8.0)[session.rank]
        plain = mean(session, value)
        session.weight = (1.0, 3.0)[session.rank]
        sums = mean(session, value, op="sum")
        return [plain, mean(session, value), mean(session, value, weight=1.0), sums]

    assert in_threads((1, 1), work) == [[{6.0}, {7.0}, {6.0}, {12.0}]] * 2


def test_a_part_of_a_weighted_mean(in_threads: InThreads) -> None:
    def work(session: Session) -> list[float]:
        session.weight = (1.0, 3.0)[session.rank]
        tensor = torch.full((2,), (4.0, 8.0)[session.rank])
        takes = (session.rank, session.rank + 1)
        values: list[float] = session.reduce_scatter(tensor, takes, "mean").wait().tolist()
        return values

    assert in_threads((2,), work) == [[7.0, 4.0], [8.0, 7.0]]


@pytest.mark.parametrize("weight", [-1.0, NAN, float("inf"), 2.0**33, 2.0**-33])
def test_a_weight_that_none_may_have_changes_nothing(
    in_threads: InThreads, weight: float
) -> None:
    def work(session: Session) -> float:
        with pytest.raises(ValueError, match="expected a weight of 0, or"):
            session.weight = weight
        return session.weight

    assert in_threads((1,), work) == [1.0]


def test_connect_takes_a_weight_and_refuses_what_is_none() -> None:
    with pytest.raises(gradwire.ConnectError, match=r"weight=-1\.0: expected 0, or"):
        gradwire.connect(weight=-1.0)
    with gradwire.connect(store=dist.HashStore(), rank=0, world_size=1, weight=2.5) as session:
        assert session.weight == 2.5


def test_integers_are_not_weighed(in_threads: InThreads) -> None:
    def work(session: Session) -> None:
        session.weight, whole = 2.0, torch.full((3,), 7, dtype=torch.int64)
        assert session.all_reduce(whole, "mean").wait().tolist() == [7, 7, 7]
        with pytest.raises(ValueError, match="a weight needs op mean and a floating-point"):
            session.all_reduce(whole, "mean", weight=2.0)
        with pytest.raises(ValueError, match="a weight needs op mean"):
            session.all_reduce(torch.ones(3), "sum", weight=2.0)

    in_threads((1,), work)


def test_who_has_weight_0_brings_nothing_not_even_what_is_no_number(
    in_scheduled_threads: InThreads,
) -> None:
    def work(session: Session) -> list[set[float]]:
        return [
            mean(
                session,
                NAN if session.rank == idle else session.rank + 1.0,
                SEVERAL_CHUNKS,
                weight=float(session.rank != idle),
            )
            for idle in range(4)
        ]

    expected = [{3.0}, {8 / 3}, {7 / 3}, {2.0}]
    for result in in_scheduled_threads((2, 1, 1), work):
        for got, wanted in zip(result, expected, strict=True):
            assert max(got) == pytest.approx(min(wanted))
            assert len(got) == 1


def weightless(session: Session) -> list[str]:
    """What is said of means without weights, of several sizes; a good one comes after each."""
    texts = []
    for elements in (1, 0, SEVERAL_CHUNKS, 3_000_000):
        future = session.all_reduce(torch.ones(elements), weight=0.0)
        after = session.all_reduce(torch.tensor([session.rank + 1.0]), "sum")
        with pytest.raises(ValueError, match="ranks brought weight 0") as caught:
            future.wait()
        assert isinstance(caught.value, gradwire.ZeroWeightError)
        texts.append(str(caught.value))
        assert after.wait().item() == session.world_size * (session.world_size + 1) / 2
    return texts


@pytest.mark.case("M34")
@pytest.mark.parametrize("layout", [(1,), (3,), (2, 1)])
def test_a_mean_without_any_weight_is_an_error_on_all_ranks(
    in_threads: InThreads, layout: tuple[int, ...]
) -> None:
    first, *others = in_threads(layout, weightless)
    assert first[0].startswith(f"round 0: all {sum(layout)} ranks brought weight 0")
    assert others == [first] * (sum(layout) - 1)


def test_every_schedule_finds_a_mean_without_any_weight(
    in_scheduled_threads: InThreads,
) -> None:
    first, *others = in_scheduled_threads((2, 1, 1), weightless)
    assert others == [first] * 3


def test_a_mean_without_any_weight_in_messages_and_among_workers(
    threads_over: Callable[..., InThreads], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(2, {"GRADWIRE_WORKERS": "2"}) as nodes:
        first, *others = threads_over(nodes.addresses)((2, 1), weightless)
        assert others == [first] * 2
        monkeypatch.setenv("GRADWIRE_SHM", "off")
        for layout in ((3,), (2, 1)):
            first, *others = threads_over(nodes.addresses)(layout, weightless)
            assert others == [first] * 2


# -- the hook, and the backend


def weigh(
    replica: DistributedDataParallel, batch: torch.Tensor, layer: nn.Linear
) -> float | str:
    layer.zero_grad()
    try:
        replica(batch).mean().backward()
    except ValueError as error:
        return str(error)
    assert layer.weight.grad is not None
    return layer.weight.grad.item()


def hooked(session: Session) -> list[float | str]:
    batch = torch.full((1, 1), 4.0) if session.rank == 0 else torch.full((3, 1), 8.0)
    layer = nn.Linear(1, 1, bias=False)
    replica = DistributedDataParallel(layer)
    replica.register_comm_hook(session, gradwire.allreduce_hook)
    results = [weigh(replica, batch, layer)]
    session.weight = float(len(batch))
    results.append(weigh(replica, batch, layer))
    session.weight = 0.0
    future = session.all_reduce(torch.ones(1))
    with pytest.raises(ValueError, match="all 2 ranks brought weight 0"):
        future.wait()
    session.weight = float(len(batch))
    return [*results, weigh(replica, batch, layer)]


@pytest.mark.case("M34")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_the_hook_weighs_what_the_session_says(
    in_processes: InProcesses, layout: tuple[int, ...]
) -> None:
    assert in_processes(layout, hooked) == [[6.0, 7.0, 7.0]] * 2


def backward_without_weight(session: Session) -> None:
    session.weight = 0.0
    layer = nn.Linear(1, 1, bias=False)
    replica = DistributedDataParallel(layer)
    replica.register_comm_hook(session, gradwire.allreduce_hook)
    # C++ code of torch raises it, which knows the text, and not the class.
    with pytest.raises(RuntimeError, match="all 2 ranks brought weight 0"):
        replica(torch.ones(1, 1)).mean().backward()


@pytest.mark.case("M34")
def test_backward_raises_where_nobody_has_a_weight(in_processes: InProcesses) -> None:
    in_processes((1, 1), backward_without_weight)


def by_group(group: dist.ProcessGroup) -> list[Any]:
    """Plain, weighted; the same by hand; without weights, in the background, and after all."""
    value, samples = ((4.0, 1.0), (8.0, 3.0))[group.rank()]
    plain, weighted, scaled = (torch.full((2,), value) for _ in range(3))
    dist.all_reduce(plain, dist.ReduceOp.AVG)
    assert gradwire.weighted_mean(weighted, samples) is None
    by_hand = dist._make_nccl_premul_sum(samples / 4)  # noqa: SLF001 - torch has no other door
    dist.all_reduce(scaled, by_hand)
    with pytest.raises(gradwire.ZeroWeightError, match="all 2 ranks brought weight 0"):
        gradwire.weighted_mean(torch.ones(2), 0.0, group)
    strided = torch.full((2, 2), value).t()[:1]
    work = gradwire.weighted_mean(strided, samples, group, async_op=True)
    assert work is not None
    work.wait()
    return [tensor.tolist() for tensor in (plain, weighted, scaled, strided.flatten())]


@pytest.mark.case("M34")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_a_group_has_weighted_means(in_groups: InProcesses, layout: tuple[int, ...]) -> None:
    expected = [[6.0] * 2, [7.0] * 2, [7.0] * 2, [7.0] * 2]
    assert in_groups(layout, by_group) == [expected] * 2


def refused(session: Session) -> None:
    with pytest.raises(TypeError, match="expected a group of the backend grpc, got gloo"):
        gradwire.weighted_mean(torch.ones(1), 1.0)


def test_a_group_of_another_backend_has_none(in_processes: InProcesses) -> None:
    in_processes((1,), refused)
