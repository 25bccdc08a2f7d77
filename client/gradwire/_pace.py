"""How a rank trains that sends its tensors: what its daemon is told of that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire._order import Order
    from gradwire_proto.v1 import aggregator_pb2 as pb


class Pace:
    """Steps begun, and time with something under way. A rank with shared memory writes these
    into the arena instead, see gradwire_proto.diary.
    """

    def __init__(self) -> None:
        self._steps = self._step = 0
        self._communicating = 0
        self._since = 0
        """When something was handed in, while nothing else was under way; 0: nothing is now."""

    def hand_in(self, order: Order, request: pb.ReduceRequest) -> None:
        """A collective begins; the request is to say so."""
        now = time.monotonic_ns()
        self._since = self._since or now
        if order.origin is not None and order.origin.step > self._step:
            self._step = order.origin.step
            self._steps += 1
        request.steps = self._steps
        request.communicating_nanoseconds = self._communicating + now - self._since

    def rest(self) -> None:
        """Nothing is under way."""
        if self._since:
            self._communicating += time.monotonic_ns() - self._since
            self._since = 0
