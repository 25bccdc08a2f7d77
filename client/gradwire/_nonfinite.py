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

MOST_STEPS = 4096
"""Steps that were not finite, and are remembered."""

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
        self.raises: bool = policy == "raise"
        self._rank = rank
        self._node_of = node_of
        self._lock = threading.Lock()
        self._errors: dict[int, NonFiniteError] = {}
        """Of steps whose last bucket has not raised them yet."""
        self._steps: dict[int, int] = {}
        """In which step each identity was reduced last."""
        self._void_steps: dict[int, None] = {}
        """Steps that were not finite, in order."""
        self._void: set[int] = set()
        """Identities of tensors by themselves whose last result was not."""
        self._warned = float("-inf")
        self._held_back = 0

    def revokes(self, identity: int, order: Order) -> bool:
        """Whether the step in which this identity was reduced last was not finite: then what
        was lost in it, huge perhaps, is not to come back. It is being reduced now.
        """
        step = None if order.origin is None else order.origin.step
        with self._lock:
            revoked = identity in self._void
            self._void.discard(identity)
            if step is not None:
                before, self._steps[identity] = self._steps.get(identity), step
                # Of this very step, who is asked later would know more.
                revoked = before not in (None, step) and before in self._void_steps
            return revoked

    def revoked(self) -> list[int]:
        """Identities that the next step would revoke."""
        with self._lock:
            late = [each for each, step in self._steps.items() if step in self._void_steps]
            return [*late, *self._void]

    def _note(self, order: Order) -> None:
        with self._lock:
            if order.origin is None:
                self._void.add(order.described.spec.identity)
                return
            self._void_steps[order.origin.step] = None
            while len(self._void_steps) > MOST_STEPS:
                del self._void_steps[next(iter(self._void_steps))]

    def judge(self, order: Order, found: Finding) -> None:
        """A result has come that is not finite. Raises NonFiniteError if it may not be.

        What a hook has brought is told by `check`, once all of its step is there: who hears of
        it may go on, and write to buckets that would still be written to.
        """
        self._note(order)
        if not self.inspects:
            if found.rank == self._rank:
                self._warn(self._describe(order, found))
            return
        text = self._describe(order, found)
        if self.raises:
            rank = None if found.rank == NOBODY else found.rank
            error = NonFiniteError(f"{text}; the result is not finite, on any rank", rank)
            if order.origin is None:
                raise error
            with self._lock:
                self._errors.setdefault(order.origin.step, error)
        elif order.origin is None:
            self._warn(text)
        else:
            self.steps.skip(order.origin.step)
            self._warn(f"{text}; the step is skipped, on all ranks")

    def check(self, step: int) -> None:
        """All buckets of the step are there. Raises what one of them has to be raised for."""
        with self._lock:
            error = self._errors.pop(step, None)
        if error is not None:
            raise error

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
