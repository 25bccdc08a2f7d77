"""Whether the other side of a link is there: who is silent, and for how long. Pure.

Time counts only while this process looks: after a stop of its own it has no right to call
others silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection

MOST_DEAD_SECONDS, LEAST_DEAD_SECONDS = 10.0, 1.0
DEAD_SHARE = 6
"""Of the job's timeout: so that who waits hears of a dead node before its own time is over."""

BEATS = 10
"""In the time after which a silent node is dead."""

SUSPECT_SECONDS, SUSPECT_BEATS = 2.0, 3
"""More than a busy node takes to answer; then fresh connections are tried."""

LOOK_SECONDS = 0.1
"""Between two looks where something is amiss."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take on a link. All derive from two settings of the job."""

    beat_seconds: float
    dead_seconds: float
    suspect_seconds: float
    resume_seconds: float

    @classmethod
    def of(cls, timeout_seconds: float, resume_seconds: float) -> Limits:
        """For a job whose rounds time out and whose lost links are waited for after these."""
        dead = max(LEAST_DEAD_SECONDS, min(MOST_DEAD_SECONDS, timeout_seconds / DEAD_SHARE))
        beat = dead / BEATS
        return cls(beat, dead, max(SUSPECT_SECONDS, SUSPECT_BEATS * beat), resume_seconds)

    @property
    def resumes(self) -> bool:
        """Whether a lost connection is made again."""
        return self.resume_seconds > 0

    @property
    def silent_seconds(self) -> float:
        """After so much silence a node is lost."""
        return max(self.resume_seconds, self.dead_seconds)


@dataclass(frozen=True, slots=True)
class Well:
    """Nothing is amiss for long."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Nothing has come, or a lane has been down, for so long: fresh connections might help."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Gone:
    """The link is lost: either nothing came for so long, or a lane was down."""

    seconds: float
    silent: bool


Verdict: TypeAlias = Well | Suspect | Gone


class Vigil:
    """Told at every look what there is to see of one link."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._looked = now
        self._signs = 0
        self._silent = 0.0
        self._down: dict[int, float] = {}

    def silent_seconds(self, now: float, signs: int) -> float:
        """For how long nothing has come."""
        return 0.0 if signs != self._signs else self._silent + now - self._looked

    def look(self, now: float, signs: int, down: Collection[int]) -> Verdict:
        """What follows from the signs of life that have come so far, and the lanes down."""
        passed = min(now - self._looked, 2 * self._limits.beat_seconds)
        self._looked = now
        self._silent = self._silent + passed if signs == self._signs else 0.0
        self._signs = signs
        self._down = {lane: self._down.get(lane, 0.0) + passed for lane in down}
        return self._judge(max(self._down.values(), default=0.0))

    def _judge(self, longest: float) -> Verdict:
        limits = self._limits
        if longest > limits.resume_seconds > 0:
            return Gone(longest, silent=False)
        if self._silent > limits.silent_seconds:
            return Gone(self._silent, silent=True)
        if limits.resumes and max(longest, self._silent) > limits.suspect_seconds:
            return Suspect(max(longest, self._silent))
        return Well()
