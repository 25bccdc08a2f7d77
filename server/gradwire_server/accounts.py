"""What people are told of one generation's time on this node, and of its ranks' pace."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_proto.diary import Pace, Totals
from gradwire_proto.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire_server.chain import Chain
    from gradwire_server.metrics import Metrics
    from gradwire_server.stopwatch import Stopwatch

HALF_LIFE_SECONDS = 10.0
"""Of what is called lately: so long ago counts half."""

_NOTHING = Pace(0, 0.0)


@dataclass(frozen=True, slots=True)
class Lately:
    """How a rank trains now."""

    step_seconds: float = 0.0
    """The mean of its steps; 0 where there were none."""
    communication: float = 0.0
    """Part of the time in which it had a collective under way."""


class _Average:
    """One rank's, over the time just past."""

    def __init__(self) -> None:
        self._seconds = self._steps = self._communicating = 0.0

    def pass_by(self, seconds: float, steps: int, communicating: float) -> None:
        keep = 0.5 ** (seconds / HALF_LIFE_SECONDS)
        self._seconds = self._seconds * keep + seconds
        self._steps = self._steps * keep + steps
        self._communicating = self._communicating * keep + communicating

    @property
    def lately(self) -> Lately:
        part = min(1.0, self._communicating / self._seconds) if self._seconds else 0.0
        steps = self._steps
        # Of less than a step nobody can say how long it takes.
        return Lately(self._seconds / steps if steps >= 0.5 else 0.0, part)


class Accounts:
    """Of the rounds of ranks that share memory the arena's diary says how long they took."""

    def __init__(self, chain: Chain | None, ranks: Iterable[int], metrics: Metrics) -> None:
        self._chain = chain
        self._metrics = metrics
        self._streamed = Totals(dict.fromkeys(STAGES, 0.0), 0.0)
        self._said: dict[int, Pace] = {}
        self._averages = {rank: _Average() for rank in ranks}
        self._looked = time.monotonic()
        self._most = self._looked_at = dict.fromkeys(self._averages, _NOTHING)
        self._booked = self._streamed
        self._counting = threading.Lock()
        self._closed = False

    # -- ranks that send their tensors

    def streamed(self, begun: int, watch: Stopwatch) -> None:
        """A round has ended whose parts came in messages, the first one then."""
        seconds = dict(self._streamed.seconds)
        seconds["wait_local"] += (watch.begun - begun) / 1e9
        for stage, nanoseconds in watch.spent.items():
            seconds[stage] += nanoseconds / 1e9
        whole = self._streamed.whole + (watch.ended - begun) / 1e9
        self._streamed = Totals(seconds, whole)

    def said(self, rank: int, steps: int, communicating_nanoseconds: int) -> None:
        """A rank says how it trains, where it says anything."""
        if steps or communicating_nanoseconds:
            self._said[rank] = Pace(steps, communicating_nanoseconds / 1e9)

    # -- what people are told

    @property
    def totals(self) -> Totals:
        """Where the time of all rounds went. In any thread."""
        if self._closed:
            return self._booked
        streamed = self._streamed
        if self._chain is None:
            return streamed
        shared = self._chain.totals
        seconds = {stage: shared.seconds[stage] + streamed.seconds[stage] for stage in STAGES}
        return Totals(seconds, shared.whole + streamed.whole)

    def lately(self, rank: int) -> Lately:
        """How a local rank trains now."""
        return self._averages[rank].lately

    def look(self, now: float) -> None:
        """Keep what is told of lately up to date."""
        passed, self._looked = now - self._looked, now
        if passed <= 0:
            return
        before, self._looked_at = self._looked_at, self.paces()
        for rank, pace in self._looked_at.items():
            steps = pace.steps - before[rank].steps
            communicating = pace.communicating - before[rank].communicating
            self._averages[rank].pass_by(passed, steps, communicating)

    def count(self) -> None:
        """Bring the metrics up to date. In any thread."""
        with self._counting:
            if self._closed:
                return
            before, self._booked = self._booked, self.totals
            # What a rank writes into the arena must not keep anybody from the metrics.
            for stage, seconds in self._booked.seconds.items():
                more = max(0.0, seconds - before.seconds[stage])
                self._metrics.stage_seconds[stage].inc(more)
            self._metrics.ledger_seconds.inc(max(0.0, self._booked.whole - before.whole))

    def close(self) -> None:
        """Count for the last time. Before the chain is closed."""
        self.count()
        with self._counting:
            self._closed = True

    def paces(self) -> dict[int, Pace]:
        """Of all local ranks; never less than it was. In any thread."""
        with self._counting:
            if not self._closed:
                chain, now = self._chain, time.monotonic_ns()
                shared = chain.pace(now) if chain is not None else {}
                self._most = {
                    rank: _most(before, shared.get(rank, before), self._said.get(rank, before))
                    for rank, before in self._most.items()
                }
            return self._most


def _most(*paces: Pace) -> Pace:
    return Pace(max(each.steps for each in paces), max(each.communicating for each in paces))
