"""connect(verify=...): replicas that are no longer equal are found, and named."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session

InProcesses: TypeAlias = Callable[..., list[Any]]


def verified(
    outer: Session, odd: dict[int, float], every: int, several: bool
) -> tuple[int, str]:
    """In which of six steps backward raises, and what, where ranks change a parameter."""
    torch.manual_seed(3)
    last = nn.Linear(40, 2)
    module = nn.Sequential(nn.Linear(4, 40), last)
    replica = DistributedDataParallel(module, bucket_cap_mb=0.0001 if several else 25)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01)
    with gradwire.connect(daemon=outer.daemon, model=replica, verify=every) as session:
        replica.register_comm_hook(session, gradwire.allreduce_hook)
        for step in range(1, 7):
            optimizer.zero_grad()
            output = replica(torch.full((1, 4), session.rank + 1.0)).sum()
            try:
                output.backward()
            except RuntimeError as error:
                return session.step, str(error)
            optimizer.step()
            if step == 2 and session.rank in odd:
                with torch.no_grad():
                    last.bias[1] += odd[session.rank]
        return session.step, ""


@pytest.mark.case("M28")
@pytest.mark.parametrize("several", [False, True])
def test_replicas_that_are_equal_go_on(in_processes: InProcesses, several: bool) -> None:
    assert in_processes((2, 1), verified, {}, 1, several) == [(6, "")] * 3


@pytest.mark.case("M28")
@pytest.mark.parametrize(
    ("layout", "odd", "who"),
    [
        ((2, 1), {2: 1e-3}, "rank 2 of node 1 differ"),
        ((2, 1), {0: 1e-3}, "rank 0 of node 0 differ"),
        ((3,), {0: 1e-3, 1: 1e-3}, "rank 2 of node 0 differ"),
        ((1, 1), {0: 1e-3}, "rank 1 of node 1 differ"),
        ((3,), {1: 1e-3, 2: 2e-3}, "rank 1 of node 0, rank 2 of node 0 differ"),
    ],
)
def test_a_replica_that_differs_is_named_on_all_ranks(
    in_processes: InProcesses, layout: tuple[int, ...], odd: dict[int, float], who: str
) -> None:
    first, *others = in_processes(layout, verified, odd, 2, True)
    assert others == [first] * (sum(layout) - 1)
    step, text = first
    assert step == 4
    assert f"step 4: the parameters of {who}" in text
    assert "first in 1.bias [2]" in text


def running_out(outer: Session, weighted: bool) -> str:
    """What is said where rank 0 has fewer batches, and so keeps older parameters."""
    torch.manual_seed(3)
    replica = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.01)
    with gradwire.connect(daemon=outer.daemon, model=replica, verify=1) as session:
        replica.register_comm_hook(session, gradwire.allreduce_hook)
        with replica.join():
            for _ in range((1, 3)[session.rank]):
                optimizer.zero_grad()
                replica(torch.ones(1, 4)).sum().backward()
                optimizer.step()
            if weighted:
                session.weight = 0.0
    return ""


@pytest.mark.case("M17")
def test_who_has_run_out_and_says_so_is_not_compared(in_processes: InProcesses) -> None:
    assert in_processes((1, 1), running_out, True) == ["", ""]


def test_a_verification_needs_a_model_and_a_number() -> None:
    with pytest.raises(gradwire.ConnectError, match="verify needs the model"):
        gradwire.connect(verify=True)
    with pytest.raises(gradwire.ConnectError, match="verify=-1: expected steps"):
        gradwire.connect(model=nn.Linear(1, 1), verify=-1)


class Others(nn.Module):
    """Parameters of every kind: of no element, one, many; of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.tensor(1.0))
        self.empty = nn.Parameter(torch.ones(0, 3))
        self.narrow = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.turned = nn.Parameter(torch.ones(3, 4).t())
        self.pairs = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self) -> torch.Tensor:
        parts = [each.abs().sum().float() for each in self.parameters()]
        return torch.stack(parts).sum()


def of_every_kind(outer: Session) -> str:
    module = Others()
    replica = DistributedDataParallel(module)
    with gradwire.connect(daemon=outer.daemon, model=replica, verify=1) as session:
        replica.register_comm_hook(session, gradwire.allreduce_hook)
        for _ in range(2):
            replica().backward()
        if session.rank == 0:
            with torch.no_grad():
                module.turned[3, 0] = 2.0
        with pytest.raises(
            RuntimeError, match=r"of rank 1 of node 0.* first in turned \[4x3\]"
        ):
            replica().backward()
    return "raised"


@pytest.mark.case("M28")
def test_parameters_of_every_kind_are_compared(in_processes: InProcesses) -> None:
    assert in_processes((2,), of_every_kind) == ["raised"] * 2
