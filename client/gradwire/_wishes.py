"""What c10d asks for beside the tensors: an operation, a root, a timeout."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp

_NAMES: dict[Any, str] = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "mean",
    ReduceOp.PRODUCT: "product",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
    ReduceOp.PREMUL_SUM: "sum",
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """One call's wishes."""

    op: str = "sum"
    factor: float | torch.Tensor | None = None
    """What every rank multiplies with before the sum."""
    root: int = 0
    seconds: float | None = None
    """The call's own timeout; None for the group's."""


def read(options: Any, op: Any = None, root: Any = None, timeout: Any = None) -> Wishes:
    """From an options object of c10d, from plain arguments, or from both."""
    op = getattr(options, "reduceOp", ReduceOp.SUM) if op is None else op
    kind = getattr(op, "op", op)
    factor = None
    if kind == ReduceOp.PREMUL_SUM:
        factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    root = getattr(options, "rootRank", 0) if root is None else root
    return Wishes(_NAMES[kind], factor, root, seconds(options, timeout))


def seconds(options: Any = None, timeout: Any = None) -> float | None:
    """A call's own timeout, or None: c10d says so with one below zero."""
    chosen = getattr(options, "timeout", None) if timeout is None else timeout
    if not isinstance(chosen, timedelta) or chosen < timedelta(0):
        return None
    return chosen.total_seconds()
