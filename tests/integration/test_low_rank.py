"""PowerSGD over our process group: when it starts, and that it trains."""

# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire_ops.cluster import Cluster

InProcesses: TypeAlias = Callable[..., list[Any]]


def trained(start_iter: int | None, steps: int) -> list[list[float]]:
    """The gradients of every step; with no start, those of plain DDP."""
    torch.manual_seed(4)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 30)))
    if start_iter is not None:
        model.register_comm_hook(*gradwire.low_rank(start_iter=start_iter))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        found.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
        optimizer.step()
    return [each.tolist() for each in found]


def started(_: dist.ProcessGroup, start_iter: int, steps: int) -> tuple[int, int]:
    """In how many of the first steps, and of the others, the bits are plain DDP's."""
    pairs = list(zip(trained(start_iter, steps), trained(None, steps), strict=True))
    same = [ours == plain for ours, plain in pairs]
    return sum(same[:start_iter]), sum(same[start_iter:])


@pytest.mark.case("M11")
@pytest.mark.parametrize("start_iter", [2, 10])
def test_before_it_starts_every_bit_is_as_without_it(
    in_groups: InProcesses, start_iter: int
) -> None:
    assert in_groups((1, 1), started, start_iter, 12) == [(start_iter, 0)] * 2


@pytest.mark.case("M11")
@pytest.mark.parametrize("start_iter", [-1, 0, 1])
def test_a_start_before_the_buckets_are_final_is_refused(start_iter: int) -> None:
    with pytest.raises(ValueError, match=f"start_iter of at least 2, .* got {start_iter}"):
        gradwire.low_rank(start_iter=start_iter)


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a rank of at least 1, got 0"):
        gradwire.low_rank(0)


def fitted(_: gradwire.Session) -> tuple[float, float]:
    """Loss at first and in the end, and under a default group of another backend."""
    torch.manual_seed(4)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    )
    model.register_comm_hook(*gradwire.low_rank(2, start_iter=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    torch.manual_seed(dist.get_rank())
    x, target = torch.randn(64, 16), torch.randn(64, 8)
    losses = []
    for _step in range(60):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def test_it_trains_on_top_of_another_backend(
    in_processes: InProcesses, daemons: Cluster
) -> None:
    seats = [{"GRADWIRE_DAEMON": address} for address in daemons.addresses[:2]]
    for first, last in in_processes((1, 1), fitted, environments=seats):
        assert last < 0.8 * first
