"""One tensor on its way, and what a session has done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradwire._tensor import unflatten

if TYPE_CHECKING:
    import torch

    from gradwire._order import Order
    from gradwire._result import Result


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session has done since it connected."""

    rounds: int
    """Collectives that have ended."""
    bytes_in: int
    """Bytes of the tensors handed in."""
    seconds_waiting: float
    """Sum over the collectives of the time from submission to result; they may overlap."""


@dataclass(slots=True, eq=False)
class Collective:
    """One tensor on its way."""

    sequence: int
    order: Order
    future: Result[torch.Tensor]
    since: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.order.flat.nbytes

    def finish(self) -> torch.Tensor:
        """The caller's tensor with the result in it."""
        return unflatten(self.order.flat, self.order.tensor)
