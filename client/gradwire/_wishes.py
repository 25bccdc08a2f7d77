"""What c10d asks for beside the tensors: an operation, a root, a timeout."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import ReduceOp

if TYPE_CHECKING:
    import torch

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
    weight: float | None = None
    """This rank's share in a mean."""
    root: int = 0
    seconds: float | None = None
    """The call's own timeout; None for the group's."""


def read(
    options: object, op: object = None, root: object = None, timeout: object = None
) -> Wishes:
    """From an options object of c10d, from plain arguments, or from both."""
    chosen: Any = getattr(options, "reduceOp", ReduceOp.SUM) if op is None else op
    kind = getattr(chosen, "op", chosen)
    factor = None
    if kind == ReduceOp.PREMUL_SUM:
        factor = chosen.factor if hasattr(chosen, "factor") else chosen.__getstate__()[1]
    first = root if isinstance(root, int) else getattr(options, "rootRank", 0)
    return Wishes(_NAMES[kind], factor, root=first, seconds=seconds(options, timeout))


def seconds(options: object = None, timeout: object = None) -> float | None:
    """A call's own timeout, or None: c10d says so with one below zero.

    Raises ValueError for zero, in which nothing can be done.
    """
    chosen = getattr(options, "timeout", None) if timeout is None else timeout
    if not isinstance(chosen, timedelta) or chosen < timedelta(0):
        return None
    if not chosen:
        raise ValueError("expected a timeout above 0 s, got 0 s")
    return chosen.total_seconds()
