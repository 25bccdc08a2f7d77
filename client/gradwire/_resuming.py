"""A pipeline that outlives its daemon: see _recovery for what becomes of its collectives."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gradwire._carrier import Nowhere
from gradwire._errors import LostError
from gradwire._pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire._carrier import Carrier
    from gradwire._collective import Collective
    from gradwire._order import Order
    from gradwire._pipeline import Judge
    from gradwire._recovery import Recovery
    from gradwire_proto.chunks import Cut
    from gradwire_proto.v1 import aggregator_pb2 as pb


class ResumingPipeline(Pipeline):
    """See Pipeline. The listener, which hears that the daemon is gone, does what follows."""

    def __init__(
        self,
        recovery: Recovery,
        carrier: Carrier,
        timeout: float,
        judge: Judge,
        first_timeout: float,
    ) -> None:
        self._recovery = recovery
        self._replay: Collective | None = None
        super().__init__(carrier, timeout, judge, first_timeout)

    @property
    def _busy(self) -> bool:
        return super()._busy or (self._replay is not None and not self._resting)

    def _hear(self) -> None:
        try:
            response = self._carrier.receive()
        except LostError as error:
            if self.over is not None:
                raise
            self._recover(0, error)
            return
        self._heard = time.monotonic()
        if response is not None and response.rejoin:
            lost = LostError(f"{self._carrier.daemon} takes the job up again")
            self._recover(response.rejoin, lost)
            return
        if response is not None:
            self._take_word(response)
        self._wake()

    def _failed(self, response: pb.ReduceResponse) -> None:
        if self._replay is not None and response.sequence == self._replay.sequence:
            reason = response.failure.reason
            raise LostError(f"the job can't be taken up again: {reason}")
        self._recovery.note(response.sequence, response.failure)
        super()._failed(response)

    def _completed(self, collective: Collective) -> None:
        if collective is self._replay:
            self._go_on()
        else:
            super()._completed(collective)

    def _recover(self, attempt: int, lost: LostError) -> None:
        """Take the seat again. Raises LostError where there is none in time."""
        self._resting = True
        with self._working:
            if self.over is not None:
                # Whoever ended it meanwhile has let go of the seat.
                return
            self._put_down(orphaned=not attempt)
            # From the second attempt on, a collective has the sequence after its number.
            first = min(self._open, default=self._next_sequence)
            open_ = self._open.get(first)
            carrier = self._recovery.rejoin(attempt, first - 1, open_, lost)
            cut_of = self._carrier.cut_of
            with self._lock:
                if self.over is None:
                    self._carrier, self._heard = carrier, time.monotonic()
                    _check_cut(open_, cut_of, carrier)
                    self._replay = self._recovery.begin(carrier, self._open)
                else:
                    carrier.hang_up()
                    carrier.close(orphaned=False)
        self._resting = False
        self._called.set()

    def _put_down(self, *, orphaned: bool) -> None:
        """Let go of the seat that was, and keep what others may lack."""
        while self._said:
            self._failed(self._said.popleft())
        with self._lock:
            self._away, old, self._replay = True, self._carrier, None
            self._carrier = Nowhere(old)
        for collective in old.drain():
            if self._open.get(collective.sequence) is collective:
                self._resolve(collective, None)
        self._recovery.keep(old)
        with self._lock:
            if not self._recovery.attempt:
                self._renumber()
        old.hang_up()
        old.close(orphaned=orphaned)

    def _renumber(self) -> None:
        for collective in self._open.values():
            collective.sequence += 1
        self._open = {each.sequence: each for each in self._open.values()}
        self._ahead = {sequence + 1: error for sequence, error in self._ahead.items()}
        self._next_sequence += 1

    def _go_on(self) -> None:
        """All ranks have what others had: what has no result yet is handed in again."""
        replay = self._replay
        assert replay is not None, "it is done"  # noqa: S101
        failed = self._recovery.failed()
        with self._lock:
            complete = self._recovery.apply(replay, self._carrier, self._open)
            lapsed = [each for each in self._open if each in failed]
            if self._carrier.told_early:
                later = failed.items()
                self._ahead |= {at: why for at, why in later if at >= self._next_sequence}
        for sequence in lapsed:
            self._resolve(self._open[sequence], failed[sequence])
        for collective in complete:
            self._resolve(collective, None)
        with self._lock:
            self._carrier.begin_at(min(self._open, default=self._next_sequence))
            for _, collective in sorted(self._open.items()):
                self._carrier.put(collective)
            self._away, self._replay = False, None


def _check_cut(
    first: Collective | None, before: Callable[[Order], Cut], carrier: Carrier
) -> None:
    """Raise LostError where chunks are not what they were: results would go astray."""
    if first is not None and before(first.order) != carrier.cut_of(first.order):
        raise LostError(
            f"the job can't be taken up again: {carrier.daemon} cuts tensors into other chunks"
            " than before; restart it with the settings that it had"
        )
