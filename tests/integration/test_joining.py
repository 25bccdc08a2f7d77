"""DDP's join(): ranks that run out of batches before others do."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.request import urlopen

import grpc
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session
from gradwire_ops.cluster import cluster
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import aggregator_pb2_grpc

InProcesses: TypeAlias = Callable[..., list[Any]]


def status(daemon: str) -> pb.StatusResponse:
    with grpc.insecure_channel(daemon) as channel:
        return aggregator_pb2_grpc.AggregatorStub(channel).Status(pb.StatusRequest(), timeout=5)


def gradient(layer: nn.Linear) -> float | None:
    return None if layer.weight.grad is None else layer.weight.grad.item()


def joined(session: Session, batches: list[int], weighted: bool) -> dict[str, Any]:
    """Train for so many batches, each rank with inputs of its rank + 1."""
    calls = 0

    def counting(state: Session, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal calls
        calls += 1
        return gradwire.allreduce_hook(state, bucket)

    layer = nn.Linear(1, 1, bias=False)
    replica = DistributedDataParallel(layer)
    replica.register_comm_hook(session, counting)
    with replica.join():
        for _ in range(batches[session.rank]):
            layer.zero_grad()
            replica(torch.full((1, 1), session.rank + 1.0)).mean().backward()
        if weighted:
            session.weight = 0.0
    found = status(session.daemon).jobs
    job = next(each for each in found if each.generation == session.generation)
    return {
        "gradient": gradient(layer),
        "calls": calls,
        "failure": job.failure,
        "failed": job.rounds_failed,
        "joined": [rank.joined for rank in job.ranks],
        "rounds": [rank.sequences for rank in job.ranks],
    }


HEALTHY = {"failure": "", "failed": 0, "joined": [True], "rounds": [5]}


@pytest.mark.case("M17")
@pytest.mark.parametrize("batches", [[3, 5], [0, 5]])
@pytest.mark.parametrize(("weighted", "expected"), [(False, 1.0), (True, 2.0)])
def test_a_rank_that_runs_out_counts_unless_its_weight_is_0(
    in_processes: InProcesses, batches: list[int], weighted: bool, expected: float
) -> None:
    short, long = in_processes((1, 1), joined, batches, weighted)
    assert long == {"gradient": expected, "calls": 5, **HEALTHY}
    assert short == {"gradient": short["gradient"], "calls": 5, **HEALTHY}


def train_strictly(replica: DistributedDataParallel, rank: int) -> None:
    with replica.join(throw_on_early_termination=True):
        for _ in range((3, 5)[rank]):
            replica(torch.full((1, 1), rank + 1.0)).mean().backward()


def early(session: Session) -> str:
    layer = nn.Linear(1, 1, bias=False)
    replica = DistributedDataParallel(layer)
    replica.register_comm_hook(session, gradwire.allreduce_hook)
    with pytest.raises(RuntimeError) as caught:
        train_strictly(replica, session.rank)
    tensor = torch.tensor([session.rank + 1.0])
    assert session.all_reduce(tensor).wait().item() == 1.5
    return str(caught.value)


@pytest.mark.case("M17")
def test_all_ranks_end_where_one_runs_out_if_they_are_to(in_processes: InProcesses) -> None:
    for text in in_processes((1, 1), early):
        assert "Rank 0 exhausted all inputs" in text or "Detected at least one rank" in text


def joined_group(group: dist.ProcessGroup, batches: list[int]) -> float | None:
    layer = nn.Linear(1, 1, bias=False)
    replica = DistributedDataParallel(layer)
    with replica.join():
        for _ in range(batches[group.rank()]):
            layer.zero_grad()
            replica(torch.full((1, 1), group.rank() + 1.0)).mean().backward()
    return gradient(layer)


@pytest.mark.case("M17")
@pytest.mark.parametrize("batches", [[3, 5], [0, 5]])
def test_a_rank_of_a_group_may_run_out(in_groups: InProcesses, batches: list[int]) -> None:
    _, long = in_groups((1, 1), joined_group, batches)
    assert long == 1.0


def joined_group_weighted(group: dist.ProcessGroup, batches: list[int]) -> float | None:
    weight = 1.0

    def weighing(
        state: dist.ProcessGroup, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        work = gradwire.weighted_mean(bucket.buffer(), weight, state, async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    layer = nn.Linear(1, 1, bias=False)
    replica = DistributedDataParallel(layer)
    replica.register_comm_hook(group, weighing)
    with replica.join():
        for _ in range(batches[group.rank()]):
            layer.zero_grad()
            replica(torch.full((1, 1), group.rank() + 1.0)).mean().backward()
        weight = 0.0
    return gradient(layer)


@pytest.mark.case("M17")
@pytest.mark.parametrize("batches", [[3, 5], [0, 5]])
def test_a_hook_of_a_group_weighs(in_groups: InProcesses, batches: list[int]) -> None:
    _, long = in_groups((1, 1), joined_group_weighted, batches)
    assert long == 2.0


def beside_gloo(session: Session, hook: bool) -> list[list[float]]:
    """Parameters after a training with unequal batches."""
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    replica = DistributedDataParallel(module, bucket_cap_mb=0.0001)
    if hook:
        replica.register_comm_hook(session, gradwire.allreduce_hook)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    torch.manual_seed(session.rank)
    with replica.join():
        for _ in range((3, 5, 1)[session.rank]):
            optimizer.zero_grad()
            replica(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    return [parameter.flatten().tolist() for parameter in module.parameters()]


@pytest.mark.case("M17")
def test_a_training_with_join_agrees_with_gloo(in_processes: InProcesses) -> None:
    ours = in_processes((2, 1), beside_gloo, True)
    (gloos, *_) = in_processes((2, 1), beside_gloo, False)
    assert ours == [ours[0]] * 3
    for one, other in zip(ours[0], gloos, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-6)


def scraped(session: Session) -> dict[str, float]:
    """What the daemon's page says of rounds that wait and of errors, where a rank ran out."""
    joined(session, [1, 5], weighted=False)
    with urlopen(f"http://{status(session.daemon).metrics}/metrics", timeout=5) as page:
        lines = [line.split() for line in page.read().decode().splitlines()]
    names = ("gradwire_stalled_rounds", "gradwire_errors_total")
    return {line[0]: float(line[1]) for line in lines if line[0].startswith(names)}


@pytest.mark.case("M17")
def test_the_metrics_call_nobody_late(
    processes_over: Callable[..., InProcesses], no_settings_of_the_users: None
) -> None:
    with cluster(2, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as nodes:
        pages = processes_over(nodes.addresses)((1, 1), scraped)
    assert pages == [{"gradwire_stalled_rounds": 0.0}] * 2
