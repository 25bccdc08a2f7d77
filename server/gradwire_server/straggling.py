"""How much of the time others wait for a rank. Pure.

A collective is waited for from the moment that the first has handed it in, here or on another
node, until this rank has. That counts only where nobody went on to the next one meanwhile: who
computes on, and hands in more, is not held up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

HALF_LIFE_SECONDS = 30.0
"""What was so long ago counts half."""

MOST_KEPT = 64
"""Collectives between two looks; of more, the latest are a sample."""

Arrivals: TypeAlias = "dict[int, dict[int, float]]"
"""When each rank has handed in each of the latest collectives, in order."""


class Straggling:
    """The scores of one node's ranks in one generation. Times are of one monotonic clock."""

    def __init__(self, ranks: Iterable[int], now: float) -> None:
        self._looked = now
        self._total = 0.0
        self._waited = dict.fromkeys(ranks, 0.0)
        """For each rank, and altogether: seconds, the older the less."""
        self._counted = dict.fromkeys(self._waited, now)
        """Until when it is counted that a rank was waited for."""
        self.last_arrivals = dict.fromkeys(self._waited, 0)
        """How often each came last, of the collectives that are known."""
        self._next = 0
        """Collectives before this one have all been counted."""
        self._came: Arrivals = {}
        self._asked: dict[int, float] = {}

    def scores(self) -> dict[int, float]:
        """For each rank, 0 to 1."""
        total = self._total
        return {
            rank: min(1.0, waited / total) if total else 0.0
            for rank, waited in self._waited.items()
        }

    @property
    def since(self) -> int:
        """The first collective that is of interest."""
        return self._next

    def came(self, rank: int, sequence: int, at: float) -> None:
        """A rank has handed in a collective."""
        self._came.setdefault(sequence, {})[rank] = at
        _forget_all_but(MOST_KEPT, self._came)

    def asked(self, sequence: int, at: float) -> None:
        """Another node has sent something of a collective that is not complete here."""
        self._asked.setdefault(sequence, at)
        _forget_all_but(MOST_KEPT, self._asked)

    def look(self, now: float, ranks: Iterable[int], came: Arrivals | None = None) -> None:
        """Count what has happened since the last look.

        `ranks` take part. `came`: where nobody calls `came`.
        """
        arrivals = self._came if came is None else came
        for sequence in self._asked:
            arrivals.setdefault(sequence, {})
        known = sorted(sequence for sequence in arrivals if sequence >= self._next)
        begins = {each: self._begin(each, arrivals[each]) for each in known}
        waited = dict.fromkeys(self._waited, 0.0)
        present, complete, done = set(ranks), True, self._next
        for sequence in known:
            times, onward = arrivals[sequence], begins.get(sequence + 1)
            for rank in present:
                waited[rank] += self._count(
                    rank, begins[sequence], onward, times.get(rank), now
                )
            complete = complete and present <= times.keys()
            if complete:
                done = sequence + 1
                self._count_last(times)
        # Where some were missed, those that are known are a sample.
        sampled = bool(known) and known[0] > self._next
        self._settle(waited, begins[known[0]] if sampled else self._looked, now)
        self._next = done
        for past in [each for each in self._came if each < done]:
            del self._came[past]
        for past in [each for each in self._asked if each < done]:
            del self._asked[past]

    def _begin(self, sequence: int, times: Mapping[int, float]) -> float:
        """When the first came to it; never, where nobody is known to have."""
        asked = self._asked.get(sequence, math.inf)
        return min((asked, *times.values()))

    def _count(
        self, rank: int, begin: float, onward: float | None, came: float | None, now: float
    ) -> float:
        """Seconds, of those not counted yet, for which this rank held a collective up."""
        if came is None and begin > self._looked:
            # The first may be about to go on to the next.
            return 0.0
        until = now if came is None else came
        if onward is not None and onward <= until:
            return 0.0
        begin = max(begin, self._counted[rank])
        self._counted[rank] = max(until, self._counted[rank])
        return max(0.0, until - begin)

    def _count_last(self, times: Mapping[int, float]) -> None:
        last = max(times, key=lambda rank: times[rank], default=None)
        if len(times) > 1 and last in self.last_arrivals:
            self.last_arrivals[last] += 1

    def _settle(self, waited: Mapping[int, float], since: float, now: float) -> None:
        passed = now - self._looked
        if passed <= 0:
            return
        self._looked = now
        keep = 0.5 ** (passed / HALF_LIFE_SECONDS)
        self._total = self._total * keep + passed
        for rank, seconds in waited.items():
            # May be more than has passed: the look before could not tell yet.
            part = seconds / (now - since) if now > since else 0.0
            self._waited[rank] = self._waited[rank] * keep + part * passed


def _forget_all_but(most: int, record: dict[int, T]) -> None:
    while len(record) > most:
        del record[next(iter(record))]
