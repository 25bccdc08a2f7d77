"""By how much a peer's clock differs from this node's, and how long the way is. Pure.

As in RFC 5905, section 8: from the times at which a question and its answer left and came. What
waits somewhere makes a round trip longer and the difference wrong by up to half of that, so the
sample with the least round trip of the latest counts.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MOST_KEPT = 16
"""Samples, and questions without an answer: clocks drift, so none is good for ever."""


class Sample(NamedTuple):
    """What one question and its answer say. Nanoseconds."""

    round_trip: int
    offset: int
    """The peer's clock less this node's."""


class Clocks:
    """This node's monotonic clock and one peer's."""

    def __init__(self) -> None:
        self._asked: deque[int] = deque(maxlen=MOST_KEPT)
        self._samples: deque[Sample] = deque(maxlen=MOST_KEPT)
        self.best: Sample | None = None
        """The one that is nearest to the truth."""

    @property
    def count(self) -> int:
        """Samples that there are."""
        return len(self._samples)

    def ask(self, now: int) -> int:
        """A question leaves."""
        self._asked.append(now)
        return now

    def answered(self, asked: int, heard: int, answered: int, now: int) -> None:
        """An answer has come. What was not asked, or makes no sense, says nothing."""
        if asked not in self._asked:
            return
        self._asked.remove(asked)
        round_trip = now - asked - (answered - heard)
        if answered < heard or round_trip < 0:
            return
        offset = ((heard - asked) + (answered - now)) // 2
        self._samples.append(Sample(round_trip, offset))
        self.best = min(self._samples)

    def own_seconds(self, peer_nanoseconds: int) -> float | None:
        """A time of the peer's clock in this node's; None where it is not known."""
        if not peer_nanoseconds or self.best is None:
            return None
        return (peer_nanoseconds - self.best.offset) / 1e9
