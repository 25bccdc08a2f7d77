"""Whose piece of work comes next on the event loop: one of each generation, in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class Turns:
    """Without it a generation with many chunks in flight would have as many pieces in the queue
    of the loop, and one with a single chunk would wait for all of them, at every step.
    """

    def __init__(self) -> None:
        self._rounds: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._calling = False

    def begin(self, who: Hashable) -> None:
        """A round of this generation is in hand."""
        self._rounds[who] = self._rounds.get(who, 0) + 1

    def end(self, who: Hashable) -> None:
        """It is no longer."""
        self._rounds[who] -= 1
        if not self._rounds[who]:
            del self._rounds[who]

    async def take(self, who: Hashable) -> None:
        """Return when a piece of work may be done, of a millisecond or so; at once where there
        is no other generation with rounds in hand.
        """
        if len(self._rounds) < 2 and not self._waiting:
            return
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(who, deque()).append(mine)
        if not self._calling:
            self._calling = True
            loop.call_soon(self._call)
        await mine

    def _call(self) -> None:
        """Let the next one go; it is done with its piece before this is called again."""
        while self._waiting:
            who = next(iter(self._waiting))
            queue = self._waiting.pop(who)
            first = queue.popleft()
            if queue:
                self._waiting[who] = queue
            if not first.done():
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._call)
                return
        self._calling = False
