"""How DDP's buckets become collectives: over which wires, guarded how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire._order import gathering, reducing
from gradwire._result import joined
from gradwire._tensor import can_be_nonfinite, inspected

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.distributed import GradBucket

    from gradwire._drift import Verifier
    from gradwire._nonfinite import Guard
    from gradwire._order import Order
    from gradwire._result import Result
    from gradwire._steps import Origin
    from gradwire._wires import Wires

    Submit = Callable[[Order], Result[torch.Tensor]]


class Buckets:
    """What a session knows of its hook's buckets, and does with them."""

    def __init__(self, wires: Wires, guard: Guard, verifier: Verifier) -> None:
        self.wires = wires
        self.guard = guard
        self._verifier = verifier

    def reduce(self, bucket: GradBucket, weight: float, submit: Submit) -> Result[torch.Tensor]:
        """Average a bucket, in place.

        Where the ranks' parameters are to be compared in this step, its last bucket waits for
        that, too, and raises DriftError.
        """
        origin = self.guard.steps.enter(bucket)
        if not origin.last or not self._verifier.is_due(origin.step):
            return self._reduce(bucket, origin, weight, submit)
        row, part = self._verifier.digests(counts=weight != 0.0)
        gathered = submit(gathering(row, part))
        reduced = self._reduce(bucket, origin, weight, submit)

        def outcome() -> torch.Tensor:
            self._verifier.check(row, origin.step, self.guard.who)
            return bucket.buffer()

        return joined([gathered, reduced], outcome)

    def _reduce(
        self, bucket: GradBucket, origin: Origin, weight: float, submit: Submit
    ) -> Result[torch.Tensor]:
        buffer = bucket.buffer()
        if self.wires.is_exact:
            return submit(reducing(buffer, origin.shapes, "mean", weight, origin))
        parts = []
        for piece in self.wires.pieces(origin.parameters, buffer.numel()):
            flat = buffer if piece.is_all(buffer) else buffer[piece.start : piece.stop]
            order = reducing(flat, piece.shapes, "mean", weight, origin)
            parts.append(submit(order.over(piece.coded)._replace(first=piece.start)))
        return parts[0] if len(parts) == 1 else joined(parts, lambda: buffer)

    def guarded(self, order: Order) -> Order:
        """With what the session's policy asks of all ranks."""
        if self.guard.inspects and can_be_nonfinite(order.described):
            return order._replace(described=inspected(order.described))
        return order
