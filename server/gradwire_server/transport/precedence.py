"""Who goes first in a daemon: what is urgent, with a little left for the rest, by turns."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gradwire_server.transport.turns import Turns

PATIENCE_SECONDS = 0.25
"""However much is urgent, a lane's next frame, of 2 MiB at most, goes after this time: the rest
never stands still."""

QUIET_SECONDS = 0.1
"""A round that is urgent but has moved nothing for so long waits for somebody, not for the
network. Less would take the gaps between its frames on a slow link for that."""


class Standing(Protocol):
    """How one generation stands towards the others of its daemon."""

    def begin(self) -> None:
        """A round is in hand."""
        ...

    def end(self) -> None:
        """It is no longer."""
        ...

    def moved(self) -> None:
        """A frame was written, or came."""
        ...

    async def turn(self) -> None:
        """Return when a frame with a payload may go."""
        ...

    async def work(self) -> None:
        """Return when sums of a chunk may be made on the event loop."""
        ...


class Precedence:
    """One for all generations of a daemon.

    It looks at rounds, not at frames alone: what the system has accepted is not yet sent, and
    megabytes of it may wait in front of the network.
    """

    def __init__(self) -> None:
        self.turns = Turns()
        """Of those that are not urgent."""
        self._rounds = 0
        self._moved = 0.0
        self._waiting: set[asyncio.Future[None]] = set()

    def standing(self, *, urgent: bool) -> Standing:
        """For a generation."""
        return _Urgent(self) if urgent else _Ordinary(self)

    def begin(self) -> None:
        """An urgent round is in hand."""
        self._rounds += 1
        self.moved()

    def end(self) -> None:
        """It is no longer."""
        self._rounds -= 1
        if not self._rounds:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)

    def moved(self) -> None:
        """Something urgent is on its way."""
        self._moved = asyncio.get_running_loop().time()

    async def clear(self) -> None:
        """Return when nothing urgent is on its way, or after a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while self._rounds and (left := self._left(loop.time(), deadline)) > 0:
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.add(waiting)
            try:
                await asyncio.wait([waiting], timeout=left)
            finally:
                self._waiting.discard(waiting)

    def _left(self, now: float, deadline: float) -> float:
        return min(deadline, self._moved + QUIET_SECONDS) - now


class _Urgent:
    """See Standing."""

    def __init__(self, precedence: Precedence) -> None:
        self._precedence = precedence

    def begin(self) -> None:
        """See Standing."""
        self._precedence.begin()

    def end(self) -> None:
        """See Standing."""
        self._precedence.end()

    def moved(self) -> None:
        """See Standing."""
        self._precedence.moved()

    async def turn(self) -> None:
        """See Standing."""

    async def work(self) -> None:
        """See Standing."""


class _Ordinary:
    """See Standing."""

    def __init__(self, precedence: Precedence) -> None:
        self._precedence = precedence

    def begin(self) -> None:
        """See Standing."""
        self._precedence.turns.begin(self)

    def end(self) -> None:
        """See Standing."""
        self._precedence.turns.end(self)

    def moved(self) -> None:
        """See Standing."""

    async def turn(self) -> None:
        """See Standing."""
        await self._precedence.clear()
        await self.work()

    async def work(self) -> None:
        """See Standing."""
        await self._precedence.turns.take(self)


ALONE: Standing = _Ordinary(Precedence())
"""Where there is nobody to go before."""
