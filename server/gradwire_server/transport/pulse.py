"""The stream that shows whether the other side is there: nothing large can delay it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc

from gradwire_proto import wire
from gradwire_server.errors import CorruptedError
from gradwire_server.transport import frames
from gradwire_server.transport.clocks import Clocks
from gradwire_server.transport.frames import Ping, Pong
from gradwire_server.transport.lane import BROKEN, NOTHING

if TYPE_CHECKING:
    from gradwire_server.transport.frames import Short
    from gradwire_server.transport.lane import Read, Write


FEW = 8
"""While there are fewer samples of the clocks, it asks faster."""

FAST_SECONDS = 0.05


class Pulse:
    """One side of it. Nothing is counted or kept: what is lost or damaged does no harm.

    That it breaks means nothing, either; what counts is whether anything comes.
    """

    def __init__(self, beat_seconds: float) -> None:
        self.heard = 0
        """Frames that came."""
        self.clocks = Clocks()
        """This node's and the peer's."""
        self.wanted = asyncio.Event()
        """Whoever dials should open it, or open it afresh."""
        self._beat = beat_seconds
        self._stream: asyncio.Task[None] | None = None
        self._closed = False
        self._answer: tuple[int, int] | None = None
        """What was asked last, and when it was heard: to be answered."""
        self._news = asyncio.Event()

    @property
    def closed(self) -> bool:
        """It is not needed any more."""
        return self._closed

    @property
    def up(self) -> bool:
        """Whether there is a stream."""
        return self._stream is not None

    async def serve(self, read: Read, write: Write) -> None:
        """Use a stream, instead of the one before; returns when it ends."""
        if self._closed:
            return
        self.interrupt()
        self.wanted.clear()
        stream = self._stream = asyncio.create_task(self._run(read, write))
        try:
            await asyncio.wait([stream])
        finally:
            stream.cancel()
            if self._stream is stream:
                self._stream = None
                self.wanted.set()

    def interrupt(self) -> None:
        """End the stream; the other side may open another."""
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """It is not needed any more."""
        self._closed = True
        self.wanted.set()
        self.interrupt()

    async def _run(self, read: Read, write: Write) -> None:
        self._answer = None
        writer = asyncio.create_task(self._write(write))
        reader = asyncio.create_task(self._listen(read))
        try:
            await asyncio.wait([writer, reader], return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.cancel()
            reader.cancel()

    async def _write(self, write: Write) -> None:
        """Ask at every beat, and answer at once; several questions have one answer."""
        loop = asyncio.get_running_loop()
        beat = loop.time()
        try:
            while True:
                if self._answer is not None:
                    answer, self._answer = self._answer, None
                    await write(_sealed(Pong(*answer, time.monotonic_ns())))
                if (now := loop.time()) >= beat:
                    beat = now + self._pause
                    await write(_sealed(Ping(self.clocks.ask(time.monotonic_ns()))))
                self._news.clear()
                if self._answer is None:
                    await happens(self._news, beat - loop.time())
        except BROKEN:
            return

    @property
    def _pause(self) -> float:
        return self._beat if self.clocks.count >= FEW else min(FAST_SECONDS, self._beat)

    async def _listen(self, read: Read) -> None:
        try:
            while (data := await read()) is not grpc.aio.EOF:
                self.heard += 1
                self._hear(data)
        except BROKEN:
            return

    def _hear(self, data: bytes) -> None:
        now = time.monotonic_ns()
        try:
            frame, _ = frames.unseal(data)
        except (CorruptedError, ValueError):
            return
        kind = frame.WhichOneof("kind")
        if kind == "ping":
            self._answer = frame.ping.nanoseconds, now
            self._news.set()
        elif kind == "pong":
            said = frame.pong
            times = said.asked_nanoseconds, said.heard_nanoseconds, said.answered_nanoseconds
            self.clocks.answered(*times, now)


def _sealed(message: Short) -> bytes:
    return wire.seal(frames.short(message), NOTHING)


async def happens(event: asyncio.Event, seconds: float) -> None:
    """Return when it is set, or after so long."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return
