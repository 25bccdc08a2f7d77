"""All lanes between this node and one other, seen as one link."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple, assert_never

import grpc

from gradwire_proto.dtypes import WIDEST_BYTES
from gradwire_server.errors import CorruptedError, ProtocolError
from gradwire_server.transport import frames
from gradwire_server.transport.assembly import Assembler, Opening, Piece, Skip
from gradwire_server.transport.base import Abort, Left, Part
from gradwire_server.transport.frames import Goodbye, Ping, Pong, Posted
from gradwire_server.transport.lane import BROKEN, Lane, Sending
from gradwire_server.transport.stripes import BULK_BYTES, Order, Spread, cut
from gradwire_server.transport.watch import Watch

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.metrics import Traffic
    from gradwire_server.transport.base import Message, PostReceiver
    from gradwire_server.transport.lane import Read, Write
    from gradwire_server.transport.precedence import Standing

PINGS = 8
"""The least of so many round trips is taken for the way's."""

MOST_PINGS = 64
"""A peer that asks more often would only fill the memory with answers."""

KEY_BYTES = 16

_NO_GOODBYE = "its process or its connection ended without a goodbye"


class Status(NamedTuple):
    """A link as people see it."""

    connected: bool = False
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0


class Link:
    """Lane 0 carries notes and what is short; shares go where least is queued.

    Lives from the first frame of lane 0 on. Where any lane ends without a goodbye, all end.
    """

    def __init__(
        self,
        peer: int,
        chunk_bytes: int,
        receiver: PostReceiver,
        traffic: Traffic,
        standing: Standing,
    ) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self.bulk = asyncio.Event()
        """Set once there was so much that several lanes would carry it sooner."""
        self.closing = False
        """This node is done: what ends now was meant to."""
        self._peer = peer
        self._receiver = receiver
        self._watch = Watch(peer, traffic, standing)
        self._standing = standing
        self._lanes: dict[int, Lane] = {}
        self._claimed = {0}
        self._readers: set[asyncio.Task[str]] = set()
        self._lost = False
        self._order = Order()
        self._spread = Spread()
        # A chunk of bytes may be summed in the widest type there is.
        self._assembler = Assembler(WIDEST_BYTES * chunk_bytes)
        self._pings = 0
        self._pong: asyncio.Future[None] | None = None

    @property
    def up(self) -> bool:
        """Whether messages go anywhere."""
        return 0 in self._lanes and self._lanes[0].up

    @property
    def status(self) -> Status:
        """How the link is."""
        connections = sum(lane.up for lane in self._lanes.values())
        return Status(self.up, self._watch.sent_bytes, self._watch.received_bytes, connections)

    def claim(self, lane: int) -> bool:
        """Whether nobody has had this lane; from now on somebody has."""
        free = lane not in self._claimed and not self.closing
        self._claimed.add(lane)
        return free

    # -- out

    async def send(self, message: Message) -> None:
        """See transport.base.Transport.send."""
        if not self.up:
            return
        if isinstance(message, Part):
            await self._send_part(message)
        else:
            await self._lanes[0].send(frames.short(message))

    async def _send_part(self, part: Part) -> None:
        (payload,) = part.pieces
        size = payload.nbytes
        number, after = self._order.next(part.key)
        lanes = [lane for lane in self._lanes.values() if lane.up]
        ranges = cut(size, len(lanes))
        sending = Sending(len(ranges))
        for start, stop in ranges:
            head = (
                frames.piece(number, start)
                if start
                else frames.opening(part, number, after, size)
            )
            queued = [lane.queued_bytes for lane in lanes]
            # What is small stays on one warm connection while that has nothing to do.
            few = size < BULK_BYTES
            lane = queued.index(min(queued)) if few else self._spread.choose(queued)
            lanes[lane].put(sending, head, payload[start:stop])
        if size >= BULK_BYTES:
            self.bulk.set()
        try:
            await sending.written
        except asyncio.CancelledError:
            if sending.uncopied:
                self._lanes[0].put(Sending(1), frames.short(Skip(number)))
            raise

    def post(self, note: aggregator_pb2.Note, payload: memoryview) -> None:
        """Queue a note, which what it is of bounds. Nothing comes of it where the link is down.

        Notes share lane 0 with what is short, and keep their order. Shares avoid it while much
        of letters is queued there, so further lanes are opened for them.
        """
        if self.up:
            self._lanes[0].put(Sending(1), frames.posted(note), payload)
        if payload.nbytes >= BULK_BYTES:
            self.bulk.set()

    async def round_trip(self) -> float:
        """Seconds to the peer and back: the least of some."""
        least = float("inf")
        for _ in range(PINGS):
            begun = time.monotonic()
            self._pong = asyncio.get_running_loop().create_future()
            await self._lanes[0].send(frames.short(Ping()))
            await self._pong
            least = min(least, time.monotonic() - begun)
        return least

    async def part(self) -> None:
        """Say goodbye on every lane; what was accepted goes before it.

        Returns once the other side has read it, and ended the stream: before that it may ask
        for what was damaged.
        """
        self.closing = True
        lanes = self._lanes.values()
        await asyncio.gather(*(lane.send(frames.short(Goodbye())) for lane in lanes))
        if self._readers:
            await asyncio.wait(self._readers)

    async def close(self) -> None:
        """Drop what is queued."""
        self.closing = True
        for lane in list(self._lanes.values()):
            await lane.close()

    # -- in

    async def serve(self, number: int, read: Read, write: Write) -> None:
        """Use a stream as this lane; returns when it ends."""
        lane = self._lanes[number] = Lane(write, self._watch, self._standing.turn)
        if self.closing and number:
            lane.put(Sending(1), frames.short(Goodbye()))
        reader = asyncio.create_task(self._listen(lane, read))
        self._readers.add(reader)
        reason = _NO_GOODBYE
        try:
            await asyncio.wait([reader])
            reason = "" if reader.cancelled() else reader.result()
        finally:
            # Also where gRPC cancels the handler of a stream whose other end has died.
            reader.cancel()
            self._readers.discard(reader)
            lane.up = False
            if reason:
                self._lose(reason)
            await lane.close()

    def _lose(self, reason: str) -> None:
        if self.closing or self._lost:
            return
        self._lost = True
        for lane in self._lanes.values():
            lane.up = False
        for reader in self._readers:
            reader.cancel()
        self._receiver.lost(self._peer, reason)

    async def _listen(self, lane: Lane, read: Read) -> str:
        """Hand on what comes; returns why nothing more does, or nothing after a goodbye."""
        try:
            while (data := await read()) is not grpc.aio.EOF:
                self._watch.received(len(data))
                heard = lane.take(data)
                if isinstance(heard, Goodbye):
                    return ""
                if heard is not None:
                    self._hear(heard)
        except BROKEN as error:
            return f"{_NO_GOODBYE} ({words(error)})"
        except CorruptedError as error:
            return str(error)
        except (ValueError, ProtocolError) as error:
            return f"it broke the rules: {error}"
        return _NO_GOODBYE

    def _hear(
        self, heard: Opening | Piece | Skip | Posted | Abort | Left | Ping | Pong
    ) -> None:
        match heard:
            case Opening() | Piece() | Skip():
                self._hear_of_share(heard)
            case Posted():
                self._hear_of_letter(heard)
            case Abort() | Left():
                self._receiver.receive(self._peer, heard)
            case Ping():
                self._answer()
            case Pong():
                if self._pong is not None and not self._pong.done():
                    self._pong.set_result(None)
            case _:
                assert_never(heard)

    def _hear_of_share(self, heard: Opening | Piece | Skip) -> None:
        for part in self._assembler.take(heard):
            self._receiver.receive(self._peer, part)
        if isinstance(heard, Opening) and heard.size >= BULK_BYTES:
            self.bulk.set()

    def _hear_of_letter(self, heard: Posted) -> None:
        self._receiver.post(self._peer, heard.note, heard.payload)
        if heard.payload.nbytes >= BULK_BYTES:
            self.bulk.set()

    def _answer(self) -> None:
        self._pings += 1
        if self._pings > MOST_PINGS:
            raise ProtocolError(f"it asked for more than {MOST_PINGS} answers")
        self._lanes[0].put(Sending(1), frames.short(Pong()))


def words(error: Exception) -> str:
    """What went wrong with a stream."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
