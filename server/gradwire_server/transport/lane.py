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
    from gradwire_server.transport.settled import Told
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

FINISH_SECONDS = 1.0
"""Who has said goodbye, and then reads nothing, is not waited for longer."""


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
    """Writes in order, in a task of its own: a cancelled write would end the stream.

    It outlives its streams: while it has none, what is queued waits.
    """

    def __init__(self, watch: Watch, turn: Turn, settlement: Told) -> None:
        self.up = False
        """It has a stream."""
        self.closed = False
        """It is done with: nothing more is written, and nobody need open it."""
        self.wanted = asyncio.Event()
        """Whoever dials should open it, or open it afresh; or see that it is done with."""
        self.queued_bytes = 0
        """Payload that is accepted and not yet written."""
        self._watch = watch
        self._turn = turn
        self._settlement = settlement
        self._journal = Journal()
        self._queue: deque[tuple[Sending, pb.Frame, memoryview]] = deque()
        self._news = asyncio.Event()
        """There may be something to write."""
        self._telling: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._last = False
        """A tally is all that will be written."""
        self._all_heard = asyncio.Event()

    # -- its streams

    @property
    def heard_index(self) -> int:
        """See Journal."""
        return self._journal.heard_index

    @property
    def resting(self) -> bool:
        """Nothing is written."""
        return self._writer is None or self._writer.done()

    @property
    def served(self) -> bool:
        """It has had a stream."""
        return self._writer is not None

    def open(self, write: Write, heard: int) -> None:
        """Go on with this stream, where the other side has heard so much.

        The one before must have ended, see `rest`. Raises ProtocolError.
        """
        self._journal.resume(heard)
        self._all_heard.clear()
        if self._settlement.any:
            self._journal.tell()
        self.up = True
        self.wanted.clear()
        self._news.set()
        self._writer = asyncio.create_task(self._pump(write))

    def break_off(self) -> None:
        """The stream is of no more use, and another is wanted; what is queued stays."""
        self._stop_writing()
        self.wanted.set()

    async def rest(self) -> None:
        """Let go of the stream, and return when nothing is written any more."""
        self._stop_writing()
        if self._writer is not None:
            await asyncio.wait([self._writer])

    def _stop_writing(self) -> None:
        self.up = False
        if self._writer is not None:
            self._writer.cancel()

    async def finish(self) -> None:
        """The other side has said goodbye: say what was heard, if it still reads, and end."""
        self._last = True
        self.tell()
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=FINISH_SECONDS)

    async def parted(self) -> None:
        """Return when the other side has heard all, or the lane is done with."""
        while not self.closed and not self._is_through():
            self._all_heard.clear()
            await self._all_heard.wait()

    def _is_through(self) -> bool:
        return not self._queue and self._journal.all_heard

    def drop(self) -> None:
        """Be done with it: drop what is queued, and with it every view of the arena."""
        self.closed = True
        self.break_off()
        if self._telling is not None:
            self._telling.cancel()
        while self._queue:
            self._queue.popleft()[0].wrote()
        self._all_heard.set()

    async def close(self) -> None:
        """Drop, and return when nothing is written any more."""
        self.drop()
        await self.rest()

    # -- frames

    def put(self, sending: Sending, head: pb.Frame, payload: memoryview = NOTHING) -> None:
        """Write a frame when its turn comes; nothing comes of it where the lane is done with.

        The queue has no bound of its own: chunks in flight have one, and each is queued once a
        hop.
        """
        if self.closed:
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
            self._attend()
            return frames.settled(frame)
        turn = self._journal.hear(frame.index, frame.heard, len(data))
        self._attend()
        return frames.read(kind, frame, payload) if turn else None

    def tell(self) -> None:
        """Say a tally soon."""
        self._journal.tell()
        self._news.set()

    def _attend(self) -> None:
        """See to what follows from what came."""
        if self._journal.due or self._journal.behind or self._queue:
            self._news.set()
        if self._journal.untold and self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(TELL_SECONDS, self._tell)
        if not self._queue and self._journal.all_heard:
            self._all_heard.set()

    def _tell(self) -> None:
        self._telling = None
        if self._journal.untold:
            self.tell()

    async def _pump(self, write: Write) -> None:
        try:
            while not self._last:
                self._news.clear()
                if self._journal.due:
                    await self._put_tally(write)
                elif self._journal.behind:
                    await self._repeat(write)
                elif self._queue and not self._journal.full:
                    await self._put_next(write)
                else:
                    await self._news.wait()
            await self._put_tally(write)
        except BROKEN:
            log.debug("a stream broke under a write; its reader says so")

    async def _put_tally(self, write: Write) -> None:
        frame = frames.tally(self._journal.tally(), self._settlement)
        self._watch.sent(len(frame))
        await write(frame)

    async def _repeat(self, write: Write) -> None:
        frame = self._journal.repeat()
        self._watch.resent(len(frame))
        await write(frame)

    async def _put_next(self, write: Write) -> None:
        if self._queue[0][2].nbytes:
            await self._turn()
            if self._journal.due or self._journal.behind:
                return
        sending, head, payload = self._queue.popleft()
        try:
            if sending.written.cancelled():
                return
            head.index, head.heard = self._journal.stamp()
            if self._settlement.untold and head.HasField("share"):
                self._settlement.stamp(head.share)
            # Joining is the copy: whatever happens to the buffer now, the frame is whole.
            frame = wire.seal(head, payload)
            self._journal.keep(frame)
            sending.uncopied -= 1
            self._watch.sent(len(frame))
            await write(frame)
        finally:
            self.queued_bytes -= payload.nbytes
            sending.wrote()


def words(error: Exception) -> str:
    """What went wrong with a stream."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
