"""How fast a link is: what passes over it lately, and what it could carry. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque

LATELY_SECONDS = 2.0
"""What is so much older counts 1/e."""

LEAST_SECONDS = 0.25
"""A link that is younger is taken for so old: else its first frame would be a huge rate."""

STEP_SECONDS = 0.05

MARKS = 4096
MARK_SECONDS = 0.0001

LEAST_SPAN_SECONDS = 0.0005
"""What was on its way for less says nothing: the clocks are not known so well."""

LONGEST_SPAN_SECONDS = 0.25
"""Of a link that is busy all the time the latest so much is looked at, and the latest share."""

HALF_LIFE_SECONDS = 5.0

USUAL_HALF_LIFE_SECONDS = 1800.0
"""A link that has become slow is said to be for about so long."""

PAUSE_SECONDS = 1.0
"""An estimate that nothing has renewed for longer is not known to have held."""


class Rate:
    """Bytes per second, lately."""

    def __init__(self, now: float) -> None:
        self._begun = now
        self._settled = now
        self._past = 0.0
        self._fresh = 0

    def add(self, size: int, now: float) -> None:
        """So much has passed."""
        if now - self._settled > STEP_SECONDS:
            self._past = self._past * self._decay(now) + self._fresh
            self._settled, self._fresh = now, 0
        self._fresh += size

    def read(self, now: float) -> float:
        """In any thread."""
        fresh = self._fresh * min(1.0, self._decay(now - STEP_SECONDS))
        total = self._past * self._decay(now) + fresh
        age = max(now - self._begun, LEAST_SECONDS)
        return total / (LATELY_SECONDS * -math.expm1(-age / LATELY_SECONDS))

    def _decay(self, now: float) -> float:
        return math.exp((self._settled - now) / LATELY_SECONDS)


class Bandwidth:
    """What a peer's large shares reach while they are on their way.

    As long as one is, its sender has something to send all the time: so what comes meanwhile,
    of this share and of others, is what the link carries. Where that is less than it was, it
    may be the sender that was busy, so the estimate follows slowly down, and at once up.

    A frame is counted when all of it has come, and it may be a whole share. Where shares
    overlap, a frame that was half here when the latest left is counted for it in full, so the
    time is taken from when the link began to be busy, or from the end of an earlier frame.
    """

    def __init__(self) -> None:
        self.per_second: float | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS)
        """How much had come, and when."""
        self._total = 0
        self._busy_since = 0.0
        """Since then a large share has been on its way, one after the other."""
        self._sampled = 0.0
        self._usual = 0.0, 0.0
        """Bytes per second times the seconds that they held, and these alone; both decay."""

    def received(self, total: int, now: float) -> None:
        """So much has come since the beginning."""
        self._total = total
        if not self._marks or now - self._marks[-1][0] >= MARK_SECONDS:
            self._marks.append((now, total))

    def arrived(self, left_at: float, came_at: float, round_trip_seconds: float) -> None:
        """All of a large share has, just now."""
        begun = left_at + round_trip_seconds / 2
        if came_at - begun < LEAST_SPAN_SECONDS or not self._marks:
            return
        if begun >= self._sampled:
            self._busy_since = begun
        since, before = self._mark_before(min(begun, came_at - LONGEST_SPAN_SECONDS))
        self._estimate((self._total - before) / (came_at - since), came_at)

    @property
    def usual(self) -> float | None:
        """What it has been lately, on average over time. In any thread."""
        product, seconds = self._usual
        return product / seconds if seconds else self.per_second

    def _estimate(self, sample: float, now: float) -> None:
        if self.per_second is not None:
            held = min(now - self._sampled, PAUSE_SECONDS)
            stays = 0.5 ** (held / USUAL_HALF_LIFE_SECONDS)
            product, seconds = self._usual
            self._usual = product * stays + self.per_second * held, seconds * stays + held
        if self.per_second is None or sample >= self.per_second:
            self.per_second = sample
        else:
            stays = 0.5 ** ((now - self._sampled) / HALF_LIFE_SECONDS)
            self.per_second = sample + (self.per_second - sample) * stays
        self._sampled = now

    def _mark_before(self, begun: float) -> tuple[float, int]:
        """From when on it is known how much came, and how much had before."""
        begun = max(begun, self._busy_since)
        place = bisect_right(self._marks, (begun, math.inf))
        if place:
            at, total = self._marks[place - 1]
            return max(at, self._busy_since), total
        oldest, total = self._marks[0]
        return (oldest, total) if len(self._marks) == MARKS else (begun, 0)
