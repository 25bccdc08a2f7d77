"""One stream of a link, on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from gradwire_proto import wire

if TYPE_CHECKING:
    from gradwire_proto.v1 import peer_pb2 as pb

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

    def __init__(self, write: Write, count: Callable[[int], None], turn: Turn) -> None:
        self._write = write
        self._count = count
        self._turn = turn
        self._queue: asyncio.Queue[tuple[Sending, pb.Frame, memoryview]] = asyncio.Queue()
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
        self._queue.put_nowait((sending, head, payload))

    async def send(self, frame: pb.Frame) -> None:
        """Return once a frame without a payload is written."""
        sending = Sending(1)
        self.put(sending, frame)
        await sending.written

    async def close(self) -> None:
        """Drop what is queued, and with it every view of the arena."""
        self.up = False
        self._writer.cancel()
        await asyncio.wait([self._writer])
        # A task that is cancelled before it began has no chance to tidy up.
        self._drain()

    async def _pump(self) -> None:
        try:
            while self.up:
                sending, head, payload = await self._queue.get()
                try:
                    if payload.nbytes:
                        await self._turn()
                    if not sending.written.cancelled():
                        await self._put(sending, head, payload)
                finally:
                    self.queued_bytes -= payload.nbytes
                    sending.wrote()
        except BROKEN:
            log.debug("a stream broke under a write; its reader says so")
        finally:
            self.up = False
            self._drain()

    def _drain(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()[0].wrote()

    async def _put(self, sending: Sending, head: pb.Frame, payload: memoryview) -> None:
        # Joining is the copy: whatever happens to the buffer from now on, the frame is whole.
        frame = wire.seal(head, payload)
        sending.uncopied -= 1
        self._count(len(frame))
        await self._write(frame)
