"""The daemon's side of the chain: its ranks add up their chunks by themselves, in the arena.

Local rank 0 opens a ticket and puts its part into the slot, each next rank adds its own; the
last one rings the daemon, which does the rest and says so in the arena. A node without peers is
not rung for: its last rank finishes the chunk, and the daemon only looks on. See
gradwire_proto.control, and the ranks' side in gradwire._chain.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from gradwire_proto.control import SHARES, STREAMS, Progress, Ticket
from gradwire_proto.diary import TIMES_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gradwire_proto.diary import Pace, Totals
    from gradwire_proto.nonfinite import Finding
    from gradwire_server.execution import Arrived
    from gradwire_server.local import Place
    from gradwire_server.metrics import Metrics
    from gradwire_server.round import Round
    from gradwire_server.shared_memory import Arena
    from gradwire_server.stopwatch import Stopwatch

MOST_STALLS = 1024
"""Collectives under way that are looked at."""


@dataclass(slots=True)
class Stall:
    """A collective that some local rank waits for. Looks like a Round to Lateness."""

    sequence: int
    opened: float
    missing: list[int]
    first_step: bool = False

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
        self._stalls: dict[int, Stall] = {}
        self._gone: set[int] = set()
        self._deeds_seen: dict[int, int] = {}
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

    def passed(self, number: int) -> int:
        """When the ticket's last local part was there: nanoseconds of CLOCK_MONOTONIC."""
        return self._control.diary.passed(number)

    def spent(self, number: int, watch: Stopwatch) -> None:
        """Where the time went since then."""
        self._control.diary.exchange(number, watch.spent, watch.ended)

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

    @property
    def in_flight(self) -> int:
        """Tickets that some rank needs still: its slot has what it added, or is to read. In
        any thread, while the arena is there.
        """
        return max(0, self._control.added(0) - self._control.taken())

    def tally(self) -> Tally:
        """Totals since the beginning; rounds and their time are the first rank's."""
        first, *others = self._all()
        size = first.bytes + sum(one.bytes for one in others)
        return Tally(first.rounds, first.seconds, size)

    @property
    def totals(self) -> Totals:
        """Where the time of all tickets went."""
        return self._control.diary.totals()

    def pace(self, now: int) -> dict[int, Pace]:
        """How each rank trains that shares this memory."""
        diary = self._control.diary
        return {rank: diary.pace(index, now) for index, rank in enumerate(self._ranks)}

    def trace(self, *, on: bool) -> None:
        """Ranks are to note what they do, or need not any more."""
        if not self._closed:
            self._control.diary.tracing = on

    def deeds(self) -> Iterator[tuple[int, bytes]]:
        """What ranks have noted since the last time; see gradwire_proto.diary.read_deeds."""
        for index, rank in enumerate(self._ranks):
            before = self._deeds_seen.get(rank, 0)
            self._deeds_seen[rank], deeds = self._control.diary.deeds(index, before)
            if deeds:
                yield rank, deeds

    def count(self, metrics: Metrics) -> None:
        """Bring the metrics up to date. In any thread."""
        with self._counting:
            if self._closed:
                return
            before, self._counted = self._counted, self.tally()
            # What a rank writes into the arena must not keep anybody from the metrics.
            size = max(0, self._counted.bytes - before.bytes)
            metrics.bytes_in.inc(size)
            metrics.bytes_out.inc(size)
            if self._alone:
                rounds = self._counted.rounds - before.rounds
                seconds = max(0.0, self._counted.seconds - before.seconds)
                metrics.rounds_done("local", rounds, seconds)

    def close(self, metrics: Metrics) -> None:
        """Count for the last time; the arena goes."""
        self.count(metrics)
        with self._counting:
            self._closed = True

    # -- lateness

    def waiting(
        self, rounds: Iterable[Round[Arrived]], now: float, failed: Callable[[int], bool]
    ) -> list[Round[Arrived] | Stall]:
        """What is under way: of these rounds and of what the ranks have handed in.

        A round knows only that some local rank is missing, a stall knows who.
        """
        submitted = self.submitted
        others = [each for each in rounds if not each.missing or each.sequence >= submitted]
        return [*self.stalls(now, failed), *others]

    def stalls(
        self, now: float, failed: Callable[[int], bool] = lambda _: False
    ) -> list[Stall]:
        """The collectives under way for which a local rank is missing, the oldest first.

        One that has failed is waited for by nobody, though a rank may not have come to it yet.
        """
        progress = self._present()
        oldest = min((each.resolved for each in progress.values()), default=0)
        newest = max((each.submitted for each in progress.values()), default=0)
        under_way = (number for number in range(oldest, newest) if not failed(number))
        stalls: dict[int, Stall] = {}
        for place, sequence in enumerate(islice(under_way, MOST_STALLS)):
            missing = self._behind(sequence, progress, oldest=place == 0)
            if missing:
                before = self._stalls.get(sequence)
                since = now if before is None else before.opened
                first_step = any(sequence < each.first_step for each in progress.values())
                stalls[sequence] = Stall(sequence, since, missing, first_step)
        self._stalls = stalls
        return list(stalls.values())

    @property
    def oldest(self) -> int | None:
        """The oldest collective without a result."""
        present = self._present().values()
        oldest = min((each.resolved for each in present), default=0)
        newest = max((each.submitted for each in present), default=0)
        return oldest if oldest < newest else None

    def arrivals(self, since: int) -> dict[int, dict[int, float]]:
        """When each rank has handed in each of its latest collectives, from this one on."""
        arrivals: dict[int, dict[int, float]] = {}
        for index, rank in enumerate(self._ranks):
            if index not in self._gone:
                for sequence, at in self._control.handed_in(index, since).items():
                    arrivals.setdefault(sequence, {})[rank] = at
        # Of those before, a rank that has handed them in may have no record any more.
        kept = self.submitted + 1 - TIMES_KEPT
        return {sequence: times for sequence, times in arrivals.items() if sequence >= kept}

    def _behind(
        self, sequence: int, progress: dict[int, Progress], *, oldest: bool
    ) -> list[int]:
        absent = [rank for rank, each in progress.items() if each.submitted <= sequence]
        if len(absent) == len(progress):
            return []
        if absent or not oldest:
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
