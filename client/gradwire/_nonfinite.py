"""What a session does about results that are not finite."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from gradwire._errors import NonFiniteError
from gradwire_proto.nonfinite import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gradwire._names import Names
    from gradwire._order import Order
    from gradwire._steps import Steps
    from gradwire_proto.nonfinite import Finding

log = logging.getLogger(__name__)

WARN_SECONDS = 10.0
"""One line in so long: a training that overflows may do so in every bucket."""


class Guard:
    """Judges the results of one session. Methods may be called from any thread."""

    def __init__(
        self, policy: str, rank: int, node_of: Sequence[int], names: Names, steps: Steps
    ) -> None:
        """`policy` is pass, raise or skip; `node_of` has the node of every rank."""
        self.names = names
        self.steps = steps
        self.skips: bool = policy == "skip"
        self.inspects: bool = policy != "pass"
        """All ranks look for what is not finite in what they bring, and say so."""
        self._raises = policy == "raise"
        self._rank = rank
        self._node_of = node_of
        self._lock = threading.Lock()
        self._warned = float("-inf")
        self._held_back = 0

    def judge(self, order: Order, found: Finding) -> None:
        """A result has come that is not finite. Raises NonFiniteError if it may not be."""
        if not self.inspects:
            if found.rank == self._rank:
                self._warn(self._describe(order, found))
            return
        text = self._describe(order, found)
        if self._raises:
            rank = None if found.rank == NOBODY else found.rank
            raise NonFiniteError(f"{text}; the result is not finite, on any rank", rank)
        if order.origin is None:
            self._warn(text)
        else:
            self.steps.skip(order.origin.step)
            self._warn(f"{text}; the step is skipped, on all ranks")

    def who(self, rank: int) -> str:
        """A rank in words."""
        if rank >= len(self._node_of):
            return f"rank {rank}"
        return f"rank {rank} of node {self._node_of[rank]}"

    def _describe(self, order: Order, found: Finding) -> str:
        where = self._where(order, found.element)
        if found.rank == NOBODY:
            return f"the sum overflowed, though every rank brought finite numbers, at {where}"
        return f"{self.who(found.rank)} brought a NaN or an infinity at {where}"

    def _where(self, order: Order, element: int) -> str:
        origin = order.origin
        if origin is None:
            if order.tensor.is_complex():
                element //= 2
            return f"element {element} of a tensor [{order.described.spec.shapes}]"
        found = origin.find(element)
        step = f"in step {origin.step}"
        if found is None:
            return f"element {element} of bucket {origin.index}, {step}"
        parameter, within = found
        name = self.names.of(parameter)
        if name is None:
            return (
                f"element {element} of bucket {origin.index}, which is element {within} of a"
                f" parameter [{_shape(parameter)}], {step}"
            )
        return f"element {within} of {name} [{_shape(parameter)}], {step}"

    def _warn(self, text: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._warned < WARN_SECONDS:
                self._held_back += 1
                return
            held_back, self._held_back, self._warned = self._held_back, 0, now
        more = f" ({held_back} such warnings before were held back)" if held_back else ""
        log.warning("%s%s", text, more)


def _shape(parameter: torch.Tensor) -> str:
    return "x".join(map(str, parameter.shape)) or "scalar"
