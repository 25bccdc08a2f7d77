"""Which rounds all nodes have settled: then nobody needs what this node keeps of them. Pure.

A round is settled at a node when it has a result there, in memory that outlives the daemon, or
has failed. A node tells the others how far it is; what it keeps of a round, it keeps until all
are beyond that. So a result that any rank lacks is still at those that have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_server.round import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FIRST = Key(0, 0)


class Settlement:
    """Of one generation at one node. Rounds begin in the order of their keys."""

    def __init__(self, peers: Iterable[int], *, keeps: bool) -> None:
        """Without `keeps`, nothing is kept: what is lost is lost."""
        self._keeps = keeps
        self._open: dict[Key, bool] = {}
        """Rounds that have begun; those that have ended, while one before them has not."""
        self._own = FIRST
        self._ranks: dict[int, Key] = {}
        self._left: set[int] = set()
        self._peers = dict.fromkeys(peers, FIRST)
        self._kept: dict[Key, Callable[[], None]] = {}

    @property
    def before(self) -> Key:
        """All rounds before this one are settled here."""
        return min((self._own, *self._ranks.values()))

    @property
    def kept(self) -> int:
        """Rounds of which something is kept."""
        return len(self._kept)

    def begin(self, key: Key) -> None:
        """A round is in hand."""
        self._open[key] = False

    def end(self, key: Key) -> None:
        """It has its result, or has failed."""
        if key not in self._open:
            return
        self._open[key] = True
        for first, ended in list(self._open.items()):
            if not ended:
                return
            del self._open[first]
            self._own = Key(first.sequence, first.chunk + 1)

    def hold(self, rank: int, before: Key) -> None:
        """A rank that gets its results in messages has all before this one."""
        if rank not in self._left:
            self._ranks[rank] = max(before, self._ranks.get(rank, FIRST))

    def release(self, rank: int) -> None:
        """Nobody waits for this rank any more."""
        self._ranks.pop(rank, None)
        self._left.add(rank)

    def keep(self, key: Key, release: Callable[[], None]) -> None:
        """Call this once all nodes have settled the round; now, if they have."""
        if not self._keeps or key < self._least():
            release()
        else:
            self._kept[key] = release

    def settled(self, peer: int, before: Key) -> None:
        """Another node has settled all rounds before this one."""
        if peer in self._peers and before > self._peers[peer]:
            self._peers[peer] = before
            self._let_go()

    def depart(self, peer: int) -> None:
        """Another node has left in good order: it has what it needs."""
        if self._peers.pop(peer, None) is not None:
            self._let_go()

    def close(self) -> None:
        """Nothing is kept any more."""
        self._peers.clear()
        self._let_go()

    def _least(self) -> Key:
        return min(self._peers.values(), default=Key(1 << 63, 0))

    def _let_go(self) -> None:
        least = self._least()
        for key in [key for key in self._kept if key < least]:
            self._kept.pop(key)()
