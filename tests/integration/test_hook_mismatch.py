"""Models that differ between ranks. `init_sync=False` keeps DDP itself from noticing."""
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

WITHIN_SECONDS = 1.0


class Branches(nn.Module):
    """Layers of other shapes but equal sizes, in this order."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.widths = widths
        self.layers = nn.ModuleList(
            nn.Linear(width, 12 // width, bias=False) for width in widths
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = zip(self.widths, self.layers, strict=True)
        return torch.stack([layer(x[:, :width]).sum() for width, layer in branches])


def build(difference: str, odd: bool) -> nn.Module:
    match difference:
        case "extra layer":
            return nn.Sequential(
                *[nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 4)][: 2 + odd]
            )
        case "swapped layers":
            return Branches(4, 2) if odd else Branches(2, 4)
        case _:
            return nn.Linear(4, 4, dtype=torch.bfloat16 if odd else torch.float16)


def train(session: Session, difference: str) -> tuple[str, float, list[float]]:
    """What backward raised, and after how long; what another model then got."""
    module = build(difference, odd=session.rank == 1)
    model = DistributedDataParallel(module, init_sync=False)
    model.register_comm_hook(session, gradwire.allreduce_hook)
    dtype = next(module.parameters()).dtype
    output = model(torch.ones(1, 4, dtype=dtype)).sum()
    began = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        output.backward()
    seconds = time.monotonic() - began
    good = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    good.register_comm_hook(session, gradwire.allreduce_hook)
    good(torch.tensor([session.rank + 1.0])).backward()
    gradient = next(good.parameters()).grad
    assert gradient is not None
    return str(caught.value), seconds, gradient.flatten().tolist()


@pytest.mark.case("M31")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ("extra layer", ["58 x float32", "78 x float32"]),
        ("swapped layers", ["24 x float32 [3x4, 6x2]", "24 x float32 [6x2, 3x4]"]),
        ("dtype", ["20 x float16", "20 x bfloat16"]),
    ],
)
def test_backward_raises_on_all_ranks_and_names_what_differs(
    in_processes: InProcesses, layout: tuple[int, ...], difference: str, words: list[str]
) -> None:
    for text, seconds, after in in_processes(layout, train, difference):
        assert "round 0" in text
        for word in words:
            assert word in text
        assert "rank" in text
        assert seconds < WITHIN_SECONDS
        assert after == [1.5]


def skip_a_bucket(session: Session) -> tuple[str, float]:
    """What backward raised where rank 1 leaves out the second step's first bucket."""
    skip = False

    def forgetful(
        state: Session, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        if not skip or state.rank != 1 or bucket.index() != 0:
            return gradwire.allreduce_hook(state, bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    layers = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.0003)
    model.register_comm_hook(session, forgetful)
    # In its first step DDP has one bucket for all.
    model(torch.ones(1, 16)).sum().backward()
    skip = True
    output = model(torch.ones(1, 16)).sum()
    began = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        output.backward()
    return str(caught.value), time.monotonic() - began


@pytest.mark.case("M31")
def test_a_bucket_that_one_rank_leaves_out_is_found_at_once(in_processes: InProcesses) -> None:
    for text, seconds in in_processes((1, 1), skip_a_bucket):
        assert "round 1" in text
        assert "128 x float32 [8x16]" in text
        assert "256 x float32 [16x16]" in text
        assert seconds < WITHIN_SECONDS
