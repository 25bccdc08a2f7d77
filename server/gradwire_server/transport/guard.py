"""Looks after one link: says who is silent, asks for fresh connections, gives the link up."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol, assert_never

from gradwire_server.transport.pulse import happens
from gradwire_server.transport.vigil import LOOK_SECONDS, Gone, Suspect, Vigil, Well

if TYPE_CHECKING:
    from collections.abc import Collection

    from gradwire_server.transport.vigil import Limits

log = logging.getLogger(__name__)

TELL_SECONDS = 0.2
"""A connection that is gone for so long is told of."""


class Guarded(Protocol):
    """A link, as its guard sees it."""

    @property
    def signs(self) -> int:
        """Of life that have come so far."""
        ...

    @property
    def down(self) -> Collection[int]:
        """Lanes that have no stream, and need one."""
        ...

    @property
    def trouble(self) -> str:
        """What was in the way last."""
        ...

    def refresh(self, *, wanted: bool) -> None:
        """All connections ought to be made afresh, or no longer."""
        ...

    def beat(self) -> None:
        """The time of a heartbeat has passed."""
        ...

    def lose(self, reason: str) -> None:
        """The link is lost."""
        ...


class Guard:
    """Of a link to a place; see vigil for what it thinks."""

    def __init__(
        self, link: Guarded, place: str, limits: Limits, subject: dict[str, object]
    ) -> None:
        """`subject` goes with every line that is logged."""
        self._subject = subject
        self._link = link
        self._place = place
        self._limits = limits
        self._vigil = Vigil(limits, time.monotonic())
        self._news = asyncio.Event()
        self._outage: float | None = None
        """Since when there is one that was told of."""
        self._broken = ""
        """What was wrong with a connection that broke, since all was well last, and when."""
        self._broke = 0.0
        self._told = False
        self._beat = time.monotonic() + limits.beat_seconds

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has come."""
        return self._vigil.silent_seconds(time.monotonic(), self._link.signs)

    def look_soon(self) -> None:
        """A lane has lost its stream."""
        if not self._broken and self._outage is None:
            self._broken, self._broke = self._link.trouble, time.monotonic()
        self._news.set()

    async def watch(self) -> None:
        """Return when the link is lost."""
        while self._look(time.monotonic()):
            amiss = self._link.down or self._outage is not None
            self._news.clear()
            half = self._limits.beat_seconds / 2
            await happens(self._news, min(LOOK_SECONDS, half) if amiss else half)

    def _look(self, now: float) -> bool:
        link = self._link
        if now >= self._beat:
            self._beat = now + self._limits.beat_seconds
            link.beat()
        match verdict := self._vigil.look(now, link.signs, link.down):
            case Gone():
                link.lose(self._words(verdict))
                return False
            case Suspect():
                self._suspect(now, verdict.seconds)
            case Well():
                self._be_calm(now)
            case _:
                assert_never(verdict)
        return True

    def _words(self, gone: Gone) -> str:
        if gone.silent:
            return f"silent for {gone.seconds:.3g} s"
        return f"unreachable for {gone.seconds:.3g} s ({self._link.trouble})"

    def _suspect(self, now: float, seconds: float) -> None:
        self._link.refresh(wanted=True)
        if self._outage is not None:
            return
        self._outage = now - seconds
        what = f"a connection to {self._place} is missing" if self._link.down else ""
        log.warning(
            "%s for %.1f s; it is waited for until %g s are over",
            what or f"nothing from {self._place}",
            seconds,
            self._limits.silent_seconds,
            extra=self._subject,
        )

    def _tell_of_break(self, now: float) -> None:
        """Once, and not where a job ends just then: one side is always the first."""
        if not self._broken:
            return
        if not self._link.down:
            if not self._told:
                what = self._place, self._broken
                text = "a connection to %s broke (%s) and was opened again"
                log.info(text, *what, extra=self._subject)
            self._broken, self._told = "", False
        elif not self._told and now - self._broke > TELL_SECONDS:
            self._told = True
            what = self._place, self._broken
            log.info("a connection to %s broke (%s)", *what, extra=self._subject)

    def _be_calm(self, now: float) -> None:
        self._tell_of_break(now)
        if self._outage is None:
            return
        self._link.refresh(wanted=False)
        seconds = now - self._outage
        log.info("%s is back after %.1f s", self._place, seconds, extra=self._subject)
        self._outage = None
