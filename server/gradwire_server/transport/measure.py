"""How fast a link is: what passes over it lately, and what it could carry. Pure."""

from __future__ import annotations

import math
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

HALF_LIFE_SECONDS = 5.0


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
        total = self._past * self._decay(now) + self._fresh
        age = max(now - self._begun, LEAST_SECONDS)
        return total / (LATELY_SECONDS * -math.expm1(-age / LATELY_SECONDS))

    def _decay(self, now: float) -> float:
        return math.exp((self._settled - now) / LATELY_SECONDS)


class Bandwidth:
    """What a peer's large shares reach while they are on their way.

    As long as one is, its sender has something to send all the time: so what comes meanwhile,
    of this share and of others, is what the link carries. Where that is less than it was, it
    may be the sender that was busy, so the estimate follows slowly down, and at once up.
    """

    def __init__(self) -> None:
        self.per_second: float | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS)
        """How much had come, and when."""
        self._total = 0
        self._sampled = 0.0

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
        begun, before = self._mark_before(begun)
        sample = (self._total - before) / (came_at - begun)
        if self.per_second is None or sample >= self.per_second:
            self.per_second = sample
        else:
            stays = 0.5 ** ((came_at - self._sampled) / HALF_LIFE_SECONDS)
            self.per_second = sample + (self.per_second - sample) * stays
        self._sampled = came_at

    def _mark_before(self, begun: float) -> tuple[float, int]:
        """From when on it is known how much came, and how much had before."""
        for at, total in reversed(self._marks):
            if at <= begun:
                return begun, total
        oldest, total = self._marks[0]
        return (oldest, total) if len(self._marks) == MARKS else (begun, 0)
