"""A model whose layers take a stated time: a sleep stands for an accelerator.

On a machine whose few cores also run the daemons and every rank, real layers would time those
cores. What the network has to carry is real: every layer has parameters, and its backward pass
gives a gradient for them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

LAYERS = 20
SHAPE = (1280, 1024)
"""5 MiB of fp32: a bucket of its own where buckets have 5 MiB."""


@dataclass(slots=True)
class Pace:
    """How long layers take, and when they began their backward passes."""

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    began: list[float] = field(default_factory=list)
    """Of the last step, in the order in which the layers were run backward."""


class _Paced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, samples: Tensor, weight: Tensor, pace: Pace) -> Tensor:  # noqa: ANN401 - torch's
        ctx.pace = pace
        ctx.save_for_backward(weight)
        time.sleep(pace.forward_seconds)
        return samples.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401 - torch's
        ctx.pace.began.append(time.perf_counter())
        time.sleep(ctx.pace.backward_seconds)
        (weight,) = ctx.saved_tensors
        return gradient, torch.full_like(weight, 1e-6), None


class _Layer(nn.Module):
    def __init__(self, pace: Pace, shape: Iterable[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(*shape))
        self._pace = pace

    def forward(self, samples: Tensor) -> Tensor:
        result: Tensor = _Paced.apply(samples, self.weight, self._pace)  # type: ignore[no-untyped-call]  # torch's
        return result


def paced_model(pace: Pace, layers: int, shape: Iterable[int]) -> nn.Sequential:
    """So many layers with parameters of this shape."""
    return nn.Sequential(*(_Layer(pace, shape) for _ in range(layers)))
