"""How shares are spread over the lanes of a link, its connections. Pure.

A share larger than a piece is cut; its pieces take whichever lanes have least to do, and come
in any order. Every share of a link has a number, and names the one of its round that went
before it: so shares of one round are handed on in order, and no round waits for another (see
assembly).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_server.round import Key

NEAR_PIECE_BYTES = 2 << 20
"""gRPC spends less CPU on a byte the larger its messages are, up to this."""

FAR_PIECE_BYTES = 512 << 10
"""Where there are more lanes than chunks in flight, a share must keep several of them busy."""

BULK_BYTES = 512 << 10
"""A share of so much is worth further lanes; a smaller one prefers the first."""

MOST_PIECES = 64
"""Of one share. The largest, a chunk of 4 MiB summed in elements 8 times as wide, has that."""

ALIGNMENT = 64
"""Pieces start at multiples of it, and so between elements."""

WINDOW = 16 << 10
"""Shares of a link, from the oldest that is missing on: more than can be on their way."""

AUTO = 0
"""Connections of a link: as many as suit the way."""

MOST_LANES = 64

NEAR_LANES, FAR_LANES = 2, 4

"""On a near link more lanes only make several shares arrive late together. On a far one, 64 MiB
over 1 Gbit/s and 50 ms: one connection 1160 ms, two 648, three to six 617 to 624, eight 660."""

FAR_SECONDS = 0.004
"""A round trip that one connection's window no longer covers."""


def lanes_for(round_trip_seconds: float, addresses: int) -> int:
    """How many connections suit a link: two, four on a long way, one an address at least."""
    count = NEAR_LANES if round_trip_seconds < FAR_SECONDS else FAR_LANES
    return min(MOST_LANES, max(count, addresses))


def cut(size: int, lanes: int) -> list[tuple[int, int]]:
    """Bytes [start, stop) of the pieces of a share: as few as can be, nearly equal, in order.

    A share of nothing is one empty piece.
    """
    piece_bytes = NEAR_PIECE_BYTES if lanes <= NEAR_LANES else FAR_PIECE_BYTES
    count = min(MOST_PIECES, -(-size // piece_bytes))
    if count <= 1:
        return [(0, size)]
    step = -(-size // (count * ALIGNMENT)) * ALIGNMENT
    return [(start, min(size, start + step)) for start in range(0, size, step)]


class Spread:
    """Chooses lanes: where least is queued, in turn where several are alike."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, queued: Sequence[int]) -> int:
        """Index of a lane, by the bytes that wait on each."""
        least = min(queued)
        turn = self._next % len(queued)
        lane = queued.index(least, turn) if least in queued[turn:] else queued.index(least)
        self._next = lane + 1
        return lane


class Order:
    """Numbers the shares of a link, on the side that sends them."""

    def __init__(self) -> None:
        self._last = 0
        self._rounds: OrderedDict[Key, int] = OrderedDict()

    def next(self, key: Key) -> tuple[int, int]:
        """The number of a round's next share, and of the one before it."""
        self._last += 1
        after = self._rounds.pop(key, 0)
        self._rounds[key] = self._last
        if len(self._rounds) > WINDOW:
            self._rounds.popitem(last=False)
        return self._last, after
