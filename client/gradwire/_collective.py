"""One tensor on its way, and what a session has done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradwire._tensor import unflatten
from gradwire_proto.nonfinite import NOBODY, Finding, first_nonfinite, least

if TYPE_CHECKING:
    import torch

    from gradwire._carrier import Outcome
    from gradwire._errors import AggregationError
    from gradwire._order import Order


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
    future: Outcome
    since: float = field(default_factory=time.monotonic)
    taken: int = 0
    """Chunks, from the first, whose result is in the tensor."""
    finding: Finding | None = None
    """Where the result is not finite, as far as it has come."""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.order.flat.nbytes

    def blame(self, error: AggregationError) -> AggregationError:
        """The error, which also says what it has kept from a result, if that has a name."""
        if self.order.origin is None:
            return error
        return type(error)(f"{error}; it is {self.order.origin}")

    def hear(self, found: Finding, start: int, stop: int, rank: int) -> None:
        """The result of the elements [start, stop) is not finite. Called before they are
        written: where nobody says who brought it, this rank looks whether it did.
        """
        if found.rank == NOBODY and self.order.weighs:
            own = first_nonfinite(self.order.flat[start:stop])
            found = found if own is None else Finding(rank, own)
        self.finding = least((self.finding, found.moved(start + self.order.first)))

    def finish(self) -> torch.Tensor:
        """The caller's tensor with the result in it."""
        return unflatten(self.order.flat, self.order.tensor)
