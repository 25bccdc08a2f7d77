"""What comes over a link's lanes, and who is told of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol, assert_never

from gradwire_proto.dtypes import WIDEST_BYTES
from gradwire_server.errors import ProtocolError
from gradwire_server.transport.assembly import Assembler, Opening, Piece, Skip
from gradwire_server.transport.base import Abort, Left
from gradwire_server.transport.frames import Ping, Pong, Posted, Settled
from gradwire_server.transport.stripes import BULK_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gradwire_server.transport.base import Part, PostReceiver
    from gradwire_server.transport.pulse import Pulse
    from gradwire_server.transport.settled import Told

MEASURED_BYTES = 128 << 10
"""Shares of so much show how fast the link is; smaller ones only how long the way is."""

PINGS = 8
"""The least of so many round trips is taken for the way's."""

MOST_PINGS = 64
"""A peer that asks more often would only fill the memory with answers."""


class Speaker(Protocol):
    """The link, as far as it matters here."""

    bulk: asyncio.Event
    settlement: Told
    pulse: Pulse

    def measure(self, part: Part) -> None:
        """A large share has come just now."""
        ...

    def answer(self) -> None:
        """Answer a question of the other side's."""
        ...


class Hearing:
    """Puts shares together, and hands on what comes from one peer."""

    def __init__(
        self, peer: int, chunk_bytes: int, receiver: PostReceiver, speaker: Speaker
    ) -> None:
        self._peer = peer
        self._receiver = receiver
        self._speaker = speaker
        # A chunk of bytes may be summed in the widest type there is.
        own_seconds = speaker.pulse.clocks.own_seconds
        self._assembler = Assembler(WIDEST_BYTES * chunk_bytes, own_seconds)
        self._pings = 0
        self._pong: asyncio.Future[None] | None = None

    async def round_trip(self, ask: Callable[[], Awaitable[None]]) -> float:
        """Seconds from asking to the answer: the least of some."""
        least = float("inf")
        for _ in range(PINGS):
            begun = time.monotonic()
            answered = self._pong = asyncio.get_running_loop().create_future()
            await ask()
            await answered
            least = min(least, time.monotonic() - begun)
        return least

    def hear(
        self, heard: Opening | Piece | Skip | Posted | Settled | Abort | Left | Ping | Pong
    ) -> None:
        """Something came, in its turn. Raises ProtocolError."""
        match heard:
            case Opening() | Piece() | Skip():
                self._hear_of_share(heard)
            case Posted():
                self._hear_of_letter(heard)
            case Abort() | Left():
                self._receiver.receive(self._peer, heard)
            case Settled():
                self._hear_settled(heard.sequence, heard.chunk)
            case Ping():
                self._hear_ping()
            case Pong():
                if self._pong is not None and not self._pong.done():
                    self._pong.set_result(None)
            case _:
                assert_never(heard)

    def _hear_settled(self, sequence: int, chunk: int) -> None:
        if (before := self._speaker.settlement.hear(sequence, chunk)) is not None:
            self._receiver.settled(self._peer, before)

    def _hear_of_share(self, heard: Opening | Piece | Skip) -> None:
        if isinstance(heard, Opening):
            self._hear_settled(*heard.settled)
        now = time.monotonic()
        for part in self._assembler.take(heard, now):
            if part.came_at == now and part.size >= MEASURED_BYTES:
                # Others of them have waited for one that was sent before.
                self._speaker.measure(part)
            self._receiver.receive(self._peer, part)
        if isinstance(heard, Opening) and heard.size >= BULK_BYTES:
            self._speaker.bulk.set()

    def _hear_of_letter(self, heard: Posted) -> None:
        self._receiver.post(self._peer, heard.note, heard.payload)
        if heard.payload.nbytes >= BULK_BYTES:
            self._speaker.bulk.set()

    def _hear_ping(self) -> None:
        self._pings += 1
        if self._pings > MOST_PINGS:
            raise ProtocolError(f"it asked for more than {MOST_PINGS} answers")
        self._speaker.answer()
