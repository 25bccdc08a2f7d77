# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import hashlib
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session

InProcesses: TypeAlias = Callable[..., list[Any]]

STEPS = 60
CHECK_EVERY = 10


def digest(tensors: Iterable[torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().numpy().tobytes())
    return sha.hexdigest()[:16]


def hooked(session: Session, model: DistributedDataParallel) -> DistributedDataParallel:
    model.register_comm_hook(session, gradwire.allreduce_hook)
    return model


def drifting(session: Session, longest_delay: float) -> list[str]:
    """Digests of the parameters, every few steps; buckets come after random delays."""

    def delayed(state: Session, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        time.sleep(longest_delay * random.random())  # noqa: S311 - not a secret
        return gradwire.allreduce_hook(state, bucket)

    torch.manual_seed(11)
    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4))
    model = DistributedDataParallel(module, bucket_cap_mb=0.005)
    model.register_comm_hook(session, delayed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(session.rank)
    digests = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        if step % CHECK_EVERY == 0:
            digests.append(digest(model.parameters()))
    return digests


@pytest.mark.case("M28")
def test_replicas_never_drift_whatever_the_order_of_arrival(in_processes: InProcesses) -> None:
    first = in_processes((2, 2), drifting, 0.0)
    assert first == [first[0]] * 4
    assert len(set(first[0])) == STEPS // CHECK_EVERY, "the parameters change"
    assert in_processes((2, 2), drifting, 0.003) == first


class Normed(nn.Module):
    """BatchNorm's buffers, and many small parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
        self.small = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(300)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x).square().mean()
        return out + torch.stack(list(self.small)).square().mean()


def seeded_apart(session: Session) -> tuple[str, list[str]]:
    """Digests before DDP has the module, and after that and each step."""
    torch.manual_seed(100 + session.rank)
    module = Normed()
    before = digest(module.state_dict().values())
    model = hooked(session, DistributedDataParallel(module))
    digests = [digest(module.state_dict().values())]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).backward()
        optimizer.step()
        digests.append(digest(module.parameters()))
    return before, digests


@pytest.mark.case("M37")
def test_models_that_began_apart_stay_together(in_processes: InProcesses) -> None:
    results = in_processes((2, 2), seeded_apart)
    assert len({before for before, _ in results}) == 4
    assert results[0][0] == results[0][1][0], "rank 0's model is everybody's"
    assert [digests for _, digests in results] == [results[0][1]] * 4
    assert len(set(results[0][1])) == 6


class Gate(torch.autograd.Function):
    """Passes values on; in backward it first waits until the first bucket is back."""

    firsts: list[torch.futures.Future[torch.Tensor]] | None
    """The first bucket's future of this step, once there is one; None: do not wait."""
    opened: list[bool]

    @staticmethod
    def forward(_context: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_context: object, *gradients: torch.Tensor) -> torch.Tensor:
        deadline = time.monotonic() + 10
        while Gate.firsts is not None and time.monotonic() < deadline:
            if Gate.firsts and Gate.firsts[0].done():
                Gate.opened.append(True)
                break
            time.sleep(0.001)
        return gradients[0]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.last = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # In backward: last, then the gate, then first.
        gated: torch.Tensor = Gate.apply(self.first(x))  # type: ignore[no-untyped-call]  # torch
        out: torch.Tensor = self.last(gated)
        return out.sum()


def overlapping(session: Session) -> tuple[list[bool], list[int]]:
    Gate.firsts, Gate.opened = None, []
    steps: list[int] = []

    def noting(state: Session, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = gradwire.allreduce_hook(state, bucket)
        steps[-1] += 1
        if bucket.index() == 0 and Gate.firsts is not None:
            Gate.firsts.append(future)
        return future

    model = DistributedDataParallel(Gated(), bucket_cap_mb=0.001)
    model.register_comm_hook(session, noting)
    for _ in range(3):
        steps.append(0)
        model(torch.ones(2, 16)).backward()
        # In its first step DDP learns the order of the gradients, with one bucket for all.
        Gate.firsts = []
    return Gate.opened, steps


@pytest.mark.case("P08")
def test_the_first_bucket_is_back_before_the_last_layers_backward(
    in_processes: InProcesses,
) -> None:
    for opened, steps in in_processes((1, 2), overlapping):
        assert steps == [1, 2, 2]
        assert opened == [True] * 2


def late_partner(session: Session) -> list[float]:
    """Seconds that each call of the hook took, though rank 1 brings nothing for a while."""
    seconds = []

    def timed(state: Session, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        began = time.monotonic()
        future = gradwire.allreduce_hook(state, bucket)
        seconds.append(time.monotonic() - began)
        return future

    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(12))), bucket_cap_mb=1
    )
    model.register_comm_hook(session, timed)
    # In its first step DDP has one bucket for all.
    model(torch.ones(1, 1024)).sum().backward()
    seconds.clear()
    output = model(torch.ones(1, 1024)).sum()
    if session.rank == 1:
        time.sleep(1.0)
    output.backward()
    return seconds


def test_the_hook_does_not_wait_for_ranks_that_are_late(in_processes: InProcesses) -> None:
    # 48 MB: more than a rank may have in flight.
    early, _ = in_processes((1, 1), late_partner)
    assert len(early) >= 10
    assert sum(early) < 0.5


class Forked(nn.Module):
    """`never` is used by no rank, `second` by rank 0 only."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("first", "second", "never"):
            layer = nn.Linear(2, 1, bias=False)
            nn.init.ones_(layer.weight)
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        out: torch.Tensor = self.get_submodule("first")(x)
        return (out if rank else out + self.get_submodule("second")(x)).sum()


def unused(session: Session) -> list[list[float] | None]:
    model = DistributedDataParallel(Forked(), find_unused_parameters=True)
    hooked(session, model)
    for _ in range(2):
        model.zero_grad()
        model(torch.full((1, 2), session.rank + 1.0), session.rank).backward()
    return [
        None if parameter.grad is None else parameter.grad.flatten().tolist()
        for parameter in model.parameters()
    ]


def test_unused_parameters_count_as_zero(in_processes: InProcesses) -> None:
    expected = [[1.5, 1.5], [0.5, 0.5], None]
    assert in_processes((1, 1), unused) == [expected] * 2


def accumulating(session: Session, view: bool) -> tuple[int, int, list[float]]:
    module = nn.Linear(2, 1, bias=False)
    model = DistributedDataParallel(module, gradient_as_bucket_view=view)
    hooked(session, model)
    began = session.stats.rounds
    with model.no_sync():
        model(torch.full((1, 2), session.rank + 1.0)).sum().backward()
    silent = session.stats.rounds - began
    model(torch.full((1, 2), 10.0)).sum().backward()
    assert module.weight.grad is not None
    return silent, session.stats.rounds - began, module.weight.grad.flatten().tolist()


@pytest.mark.parametrize("view", [True, False])
def test_no_sync_accumulates_before_one_collective(
    in_processes: InProcesses, view: bool
) -> None:
    assert in_processes((1, 1), accumulating, view) == [(0, 1, [11.5, 11.5])] * 2


def viewing(session: Session) -> list[list[str]]:
    runs: list[list[str]] = []
    for view in (True, False):
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8))
        model = DistributedDataParallel(
            module, gradient_as_bucket_view=view, bucket_cap_mb=0.01
        )
        hooked(session, model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(session.rank)
        runs.append([])
        for _ in range(4):
            optimizer.zero_grad(set_to_none=not view)
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
            runs[-1].append(digest(model.parameters()))
    return runs


def test_gradients_may_be_views_of_the_buckets(in_processes: InProcesses) -> None:
    results = in_processes((2, 1), viewing)
    with_view, without = results[0]
    assert with_view == without
    assert results == [results[0]] * 3


def sparse(session: Session) -> str:
    model = hooked(session, DistributedDataParallel(nn.Embedding(5, 2, sparse=True)))
    loss = model(torch.tensor([session.rank, 2])).sum()
    with pytest.raises(TypeError) as caught:
        loss.backward()
    return str(caught.value)


def test_sparse_gradients_are_refused_with_a_remedy(in_processes: InProcesses) -> None:
    for text in in_processes((1, 1), sparse):
        assert "sparse" in text
        assert "to_dense" in text


def reconnecting(session: Session) -> list[tuple[float, bool]]:
    session.close()
    results = []
    for _ in range(3):
        with gradwire.connect(daemon=session.daemon, timeout=10) as again:
            model = hooked(again, DistributedDataParallel(nn.Linear(1, 1, bias=False)))
            model(torch.tensor([again.rank + 1.0])).backward()
            gradient = next(model.parameters()).grad
            assert gradient is not None
            results.append((gradient.item(), again.generation != session.generation))
    return results


def test_a_process_may_connect_again_and_again(in_processes: InProcesses) -> None:
    assert in_processes((2, 1), reconnecting) == [[(2.0, True)] * 3] * 3
