"""The daemon's side of the chain: its ranks add up their chunks by themselves, in the arena.

Local rank 0 opens a ticket and puts its part into the slot, each next rank adds its own; the
last one rings the daemon, which does the rest and says so in the arena. A node without peers is
not rung for: its last rank finishes the chunk, and the daemon only looks on. See
gradwire_proto.control, and the ranks' side in gradwire._chain.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_proto.control import SHARES, STREAMS, Progress, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradwire_proto.nonfinite import Finding
    from gradwire_server.local import Place
    from gradwire_server.metrics import Metrics
    from gradwire_server.shared_memory import Arena


@dataclass(slots=True)
class Stall:
    """The oldest collective that some local rank waits for. Looks like a Round to Lateness."""

    sequence: int
    opened: float
    missing: list[int]
    warned: bool = False

    def __str__(self) -> str:
        return f"round {self.sequence}"


@dataclass(frozen=True, slots=True)
class Tally:
    """What the ranks have done without the daemon, all ranks together."""

    rounds: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Chain:
    """What the daemon reads and writes of one arena's counters."""

    def __init__(self, arena: Arena, ranks: tuple[int, ...], *, alone: bool) -> None:
        self._arena = arena
        self._control = arena.control
        self._ranks = ranks
        self._alone = alone
        self._seen = 0
        self._stall: Stall | None = None
        self._gone: set[int] = set()
        self._counted = Tally()
        self._counting = threading.Lock()
        self._closed = False

    # -- tickets

    def ready(self) -> Iterator[tuple[int, Ticket | None]]:
        """Tickets that have passed all local ranks since the last look; None where void.

        Raises ValueError where the arena makes no sense.
        """
        last = len(self._ranks) - 1
        if self._closed:
            return
        while self._seen < self._control.added(last):
            number, self._seen = self._seen, self._seen + 1
            void = self._control.is_void(number)
            yield number, None if void else self._control.ticket(number)

    def place(self, number: int) -> Place:
        """The ticket's memory."""
        return self._arena.place(number)

    def weight(self, number: int) -> float:
        """Sum of the local ranks' weights."""
        return self._control.weight(number)

    def noted(self, number: int) -> Finding | None:
        """What one of the local ranks brought that is not finite."""
        return self._control.noted(number)

    def publish(self, number: int, found: Finding | None = None) -> None:
        """The result is in the slot, finite or not."""
        if found is not None:
            self._control.flag(number, found)
        self._control.finish(number)
        self._control.wake_all()

    def spoil(self, number: int) -> None:
        """The ticket has no result."""
        self._control.spoil(number)
        self.publish(number)

    def release(self, number: int) -> None:
        """The slot may be used again, once its result has been read."""
        self._control.release(number)
        self._control.wake(0)

    # -- ranks

    def streams(self, rank: int) -> None:
        """This rank's tensors come in messages; so then do all others'."""
        self._control.take_seat(self._ranks.index(rank), STREAMS)

    @property
    def in_use(self) -> bool:
        """Tensors come through the arena."""
        return all(seat == SHARES for seat in self._control.seats())

    @property
    def streaming(self) -> bool:
        """Tensors come in messages."""
        return STREAMS in self._control.seats()

    def limit(self, collectives: int) -> None:
        """Somebody has left after so many: no rank should wait for a later one in vain."""
        self._control.limit = min(self._control.limit, collectives)

    @property
    def submitted(self) -> int:
        """Collectives that some rank has been handed."""
        return max(each.submitted for each in self._all())

    def count_failure(self) -> None:
        """A collective has failed; its ranks are about to be told."""
        self._control.count_failure()

    def sequences(self, rank: int) -> int:
        """Collectives that this rank has brought all of."""
        return self._control.progress(self._ranks.index(rank)).brought

    def depart(self, rank: int) -> None:
        """This rank has left; nobody waits for it."""
        self._gone.add(self._ranks.index(rank))

    @property
    def open(self) -> int:
        """Collectives under way."""
        present = self._present().values()
        return self.submitted - min((each.resolved for each in present), default=self.submitted)

    def tally(self) -> Tally:
        """Totals since the beginning; rounds and their time are the first rank's."""
        first, *others = self._all()
        size = first.bytes + sum(one.bytes for one in others)
        return Tally(first.rounds, first.seconds, size)

    def count(self, metrics: Metrics) -> None:
        """Bring the metrics up to date. In any thread."""
        with self._counting:
            if self._closed:
                return
            before, self._counted = self._counted, self.tally()
            metrics.bytes_in.inc(self._counted.bytes - before.bytes)
            metrics.bytes_out.inc(self._counted.bytes - before.bytes)
            if self._alone:
                rounds = self._counted.rounds - before.rounds
                metrics.rounds_done("local", rounds, self._counted.seconds - before.seconds)

    def close(self, metrics: Metrics) -> None:
        """Count for the last time; the arena goes."""
        self.count(metrics)
        with self._counting:
            self._closed = True

    # -- lateness

    def stall(
        self, now: float, failed: Callable[[int], bool] = lambda _: False
    ) -> Stall | None:
        """The oldest collective under way for which a local rank is missing.

        One that has failed is waited for by nobody, though a rank may not have come to it yet.
        """
        progress = self._present()
        if not progress:
            return None
        sequence = min(each.resolved for each in progress.values())
        while failed(sequence):
            sequence += 1
        missing = self._behind(sequence, progress)
        if not missing:
            self._stall = None
        elif self._stall is None or self._stall.sequence != sequence:
            self._stall = Stall(sequence, now, missing)
        else:
            self._stall.missing = missing
        return self._stall

    def _behind(self, sequence: int, progress: dict[int, Progress]) -> list[int]:
        absent = [rank for rank, each in progress.items() if each.submitted <= sequence]
        if len(absent) == len(progress):
            return []
        if absent:
            return absent
        # All have been handed it: somebody does not pass on what it was passed.
        furthest = max(each.added for each in progress.values())
        slow = [rank for rank, each in progress.items() if each.added < furthest]
        if self._alone and not slow:
            slow = [rank for rank, each in progress.items() if each.taken < furthest]
        return slow[:1]

    def _present(self) -> dict[int, Progress]:
        return {
            rank: self._control.progress(index)
            for index, rank in enumerate(self._ranks)
            if index not in self._gone
        }

    def _all(self) -> list[Progress]:
        return [self._control.progress(index) for index in range(len(self._ranks))]
