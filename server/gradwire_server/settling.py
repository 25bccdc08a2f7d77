"""Lets the other nodes know what this one has settled, and keeps what they may lack still."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from gradwire_server.settlement import Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradwire_server.round import Key
    from gradwire_server.transport.base import Transport


class Settling:
    """Of one generation at one node: a Settlement, and who is told of it."""

    def __init__(self, peers: Iterable[int], *, keeps: bool) -> None:
        """See Settlement."""
        self._settlement = Settlement(peers, keeps=keeps)
        self._told = self._settlement.before
        self._news = asyncio.Event()
        self._transport: Transport | None = None

    def connect(self, transport: Transport) -> None:
        """Tell the other nodes."""
        self._transport = transport

    def begin(self, key: Key) -> None:
        """A round is in hand."""
        self._settlement.begin(key)

    def end(self, key: Key) -> None:
        """It has its result, or has failed."""
        self._settlement.end(key)
        self._tell()

    def hold(self, rank: int, before: Key) -> None:
        """A local rank that gets its results in messages has all before this one."""
        self._settlement.hold(rank, before)
        self._tell()

    def keep(self, key: Key, release: Callable[[], None]) -> None:
        """Call this once all nodes have settled the round."""
        self._settlement.keep(key, release)
        self._news.set()

    def settled(self, peer: int, before: Key) -> None:
        """Another node has settled all rounds before this one."""
        self._settlement.settled(peer, before)
        self._news.set()

    def depart(self, rank: int, peers: Iterable[int]) -> None:
        """A rank has left in good order; from these nodes, all have."""
        self._settlement.release(rank)
        for peer in peers:
            self._settlement.depart(peer)
        self._tell()
        self._news.set()

    async def stable(self, seconds: float) -> None:
        """Return once all nodes have what this one has, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._settlement.kept:
                    self._news.clear()
                    await self._news.wait()

    def close(self) -> None:
        """Nothing is kept any more."""
        self._settlement.close()
        self._news.set()

    def _tell(self) -> None:
        before = self._settlement.before
        if before > self._told and self._transport is not None:
            self._told = before
            self._transport.settle(before)
