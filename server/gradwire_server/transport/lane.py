"""One stream of a link, on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from gradwire_proto import wire
from gradwire_server.errors import CorruptedError
from gradwire_server.transport import frames
from gradwire_server.transport.journal import Journal

if TYPE_CHECKING:
    from gradwire_proto.v1 import peer_pb2 as pb
    from gradwire_server.transport.frames import Heard
    from gradwire_server.transport.watch import Watch

log = logging.getLogger(__name__)

BROKEN = (
    grpc.RpcError,
    grpc.aio.InternalError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
)
"""What reading from and writing to a stream raise where it has ended."""

Read = Callable[[], Awaitable[Any]]
Write = Callable[[bytes], Awaitable[None]]
Turn = Callable[[], Awaitable[None]]

NOTHING = memoryview(b"")

TELL_SECONDS = 0.1
"""Frames of this age that were heard are told of, though nothing else is to be said: so the
other side need not keep them."""


class Sending:
    """A message on its way: written once all of its frames are."""

    def __init__(self, frames: int) -> None:
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.uncopied = frames
        """Frames that still need the message's payload."""
        self._unwritten = frames

    def wrote(self) -> None:
        """One frame more is written, or never will be."""
        self._unwritten -= 1
        if not self._unwritten and not self.written.done():
            self.written.set_result(None)


class Lane:
    """Writes in order, in a task of its own: a cancelled write would end the stream."""

    def __init__(self, write: Write, watch: Watch, turn: Turn) -> None:
        self._write = write
        self._watch = watch
        self._turn = turn
        self._journal = Journal()
        self._queue: deque[tuple[Sending, pb.Frame, memoryview]] = deque()
        self._news = asyncio.Event()
        """There may be something to write."""
        self._telling: asyncio.TimerHandle | None = None
        self._writer = asyncio.create_task(self._pump())
        self.up = True
        self.queued_bytes = 0
        """Payload that is accepted and not yet written."""

    def put(self, sending: Sending, head: pb.Frame, payload: memoryview = NOTHING) -> None:
        """Write a frame when its turn comes; nothing comes of it where the lane is down.

        The queue has no bound of its own: chunks in flight have one, and each is queued once a
        hop.
        """
        if not self.up:
            sending.wrote()
            return
        self.queued_bytes += payload.nbytes
        self._queue.append((sending, head, payload))
        self._news.set()

    async def send(self, frame: pb.Frame) -> None:
        """Return once a frame without a payload is written."""
        sending = Sending(1)
        self.put(sending, frame)
        await sending.written

    def take(self, data: bytes) -> Heard | None:
        """What came says, if it is its turn.

        Raises CorruptedError where too much was damaged; ValueError or ProtocolError where the
        other side breaks the rules.
        """
        try:
            frame, payload = frames.unseal(data)
        except CorruptedError as error:
            self._watch.damaged(str(error))
            self._journal.hear_damaged(str(error))
            self._news.set()
            return None
        kind = frame.WhichOneof("kind")
        if kind == "tally":
            self._journal.hear_tally(frames.read_tally(frame))
            turn = False
        else:
            turn = self._journal.hear(frame.index, frame.heard, len(data))
        self._attend()
        return frames.read(kind, frame, payload) if turn else None

    async def close(self) -> None:
        """Drop what is queued, and with it every view of the arena."""
        self.up = False
        self._writer.cancel()
        await asyncio.wait([self._writer])
        # A task that is cancelled before it began has no chance to tidy up.
        self._drain()

    def _attend(self) -> None:
        """See to what follows from what came."""
        if self._journal.due or self._journal.behind or self._queue:
            self._news.set()
        if self._journal.untold and self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(TELL_SECONDS, self._tell)

    def _tell(self) -> None:
        self._telling = None
        if self._journal.untold:
            self._journal.tell()
            self._news.set()

    async def _pump(self) -> None:
        try:
            while self.up:
                self._news.clear()
                if self._journal.due:
                    await self._put_tally()
                elif self._journal.behind:
                    await self._repeat()
                elif self._queue and not self._journal.full:
                    await self._put_next()
                else:
                    await self._news.wait()
        except BROKEN:
            log.debug("a stream broke under a write; its reader says so")
        finally:
            self.up = False
            self._drain()

    def _drain(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
        while self._queue:
            self._queue.popleft()[0].wrote()

    async def _put_tally(self) -> None:
        frame = frames.tally(self._journal.tally())
        self._watch.sent(len(frame))
        await self._write(frame)

    async def _repeat(self) -> None:
        frame = self._journal.repeat()
        self._watch.resent(len(frame))
        await self._write(frame)

    async def _put_next(self) -> None:
        if self._queue[0][2].nbytes:
            await self._turn()
            if self._journal.due or self._journal.behind:
                return
        sending, head, payload = self._queue.popleft()
        try:
            if sending.written.cancelled():
                return
            head.index, head.heard = self._journal.stamp()
            # Joining is the copy: whatever happens to the buffer now, the frame is whole.
            frame = wire.seal(head, payload)
            self._journal.keep(frame)
            sending.uncopied -= 1
            self._watch.sent(len(frame))
            await self._write(frame)
        finally:
            self.queued_bytes -= payload.nbytes
            sending.wrote()
