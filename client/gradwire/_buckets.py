"""How DDP's buckets become collectives: over which wires, guarded how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire._order import gathering, reducing
from gradwire._result import joined
from gradwire._tensor import can_be_nonfinite, inspected, of_first_step, revoking

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
        self._awaited: list[Result[torch.Tensor]] = []
        """Of the model whose buckets come now, where its last bucket has to wait for them."""

    def reduce(self, bucket: GradBucket, weight: float, submit: Submit) -> Result[torch.Tensor]:
        """Average a bucket, in place.

        A model's last bucket waits for all of it, and raises NonFiniteError where a result is
        not finite and that is to be raised. Where the ranks' parameters are to be compared in
        this step, it waits for that, too, and raises DriftError.
        """
        origin = self.guard.steps.enter(bucket)
        row: torch.Tensor | None = None
        if origin.last and self._verifier.is_due(origin.step):
            row, part = self._verifier.digests(counts=weight != 0.0)
            self._awaited.append(submit(gathering(row, part)))
        reduced = self._reduce(bucket, origin, weight, submit)
        if row is None and not self.guard.raises:
            return reduced
        self._awaited.append(reduced)
        if not origin.last:
            return reduced
        awaited, self._awaited = self._awaited, []

        def outcome() -> torch.Tensor:
            self.guard.check(origin.step)
            if row is not None:
                self._verifier.check(row, origin.step, self.guard.who)
            return bucket.buffer()

        return joined(awaited, outcome)

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
        """With what the session's policy asks of all ranks, and what it knows of the identity.

        All ranks know the same: a result that is not finite is so for all of them.
        """
        described = order.described
        if self.guard.inspects and can_be_nonfinite(described):
            described = inspected(described, skips=self.guard.skips)
        if described.spec.identity and self.guard.revokes(described.spec.identity, order):
            described = revoking(described)
        if order.origin is not None and order.origin.step == 1:
            described = of_first_step(described)
        return order if described is order.described else order._replace(described=described)
