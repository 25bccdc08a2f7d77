# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session

InProcesses: TypeAlias = Callable[..., list[Any]]

LAYERS, WIDTH = 20, 64
LAYER_SECONDS = 0.005
BUCKET_MEGABYTES = 0.05
"""Three layers."""


class Slow(nn.Module):
    """A layer whose backward begins with a pause, and is noted."""

    def __init__(self, begun: list[float]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self._begun = begun

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x)
        out.register_hook(self._begin)
        return out

    def _begin(self, _gradient: torch.Tensor) -> None:
        self._begun.append(time.monotonic())
        time.sleep(LAYER_SECONDS)


def timed_step(session: Session) -> tuple[list[float], list[float]]:
    """When each bucket was submitted, and when each layer's backward began."""
    begun: list[float] = []
    submitted: list[float] = []

    def noting(state: Session, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = gradwire.allreduce_hook(state, bucket)
        submitted.append(time.monotonic())
        return future

    layers = nn.Sequential(*(Slow(begun) for _ in range(LAYERS)))
    model = DistributedDataParallel(layers, bucket_cap_mb=BUCKET_MEGABYTES)
    model.register_comm_hook(session, noting)
    for _ in range(3):
        # In its first step DDP learns the order of the gradients, with one bucket for all.
        begun.clear()
        submitted.clear()
        model(torch.ones(2, WIDTH)).sum().backward()
    return submitted, begun


@pytest.mark.case("P08")
def test_buckets_leave_while_other_layers_are_yet_to_begin(in_processes: InProcesses) -> None:
    for submitted, begun in in_processes((1, 1), timed_step):
        assert len(submitted) >= 5
        assert len(begun) == LAYERS
        assert submitted[0] < begun[len(begun) // 2]
        early = [at for at in submitted if at < begun[-1]]
        assert len(early) >= len(submitted) - 2
