"""All lanes between this node and one other, seen as one link."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import grpc

from gradwire_server.errors import CorruptedError, ProtocolError
from gradwire_server.transport import frames
from gradwire_server.transport.assembly import Skip
from gradwire_server.transport.base import Part
from gradwire_server.transport.ending import NO_GOODBYE, OWN_FAULT, Ending
from gradwire_server.transport.frames import Goodbye, Ping, Pong
from gradwire_server.transport.guard import Guard
from gradwire_server.transport.hearing import Hearing
from gradwire_server.transport.lane import BROKEN, Lane, Sending, words
from gradwire_server.transport.pulse import Pulse
from gradwire_server.transport.settled import Told
from gradwire_server.transport.stripes import BULK_BYTES, Order, Spread, cut

if TYPE_CHECKING:
    from collections.abc import Collection

    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.round import Key
    from gradwire_server.transport.base import Message, PostReceiver
    from gradwire_server.transport.lane import Read, Write
    from gradwire_server.transport.precedence import Standing
    from gradwire_server.transport.vigil import Limits
    from gradwire_server.transport.watch import Status, Watch

KEY_BYTES = 16

SETTLE_SECONDS = 0.02
"""What is settled is told after this time, if no share went that could tell it."""


class Link:
    """Lane 0 carries notes and what is short; shares go where least is queued.

    A lane whose stream ends without a goodbye waits for another, if the job's limits allow;
    else all lanes end with it.
    """

    def __init__(  # noqa: PLR0913 - what a link is made of; GrpcTransport puts it together
        self,
        peer: int,
        place: str,
        chunk_bytes: int,
        receiver: PostReceiver,
        watch: Watch,
        standing: Standing,
        limits: Limits,
        most_untold: int,
    ) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self.bulk = asyncio.Event()
        """Set once there was so much that several lanes would carry it sooner."""
        self.closing = False
        """This node is done: what ends now was meant to."""
        self.trouble = NO_GOODBYE
        """What ended a stream last, or was in the way of another."""
        self.over = asyncio.Event()
        """Nothing goes any more."""
        self.pulse = Pulse(limits.beat_seconds)
        self.settlement = Told()
        self.lost = ""
        """Why it is."""
        self.subject = watch.subject
        self._peer = peer
        self._receiver = receiver
        self._watch = watch
        self._standing = standing
        self._limits = limits
        self._most_untold = most_untold
        self._guard = Guard(self, place, limits, watch.subject)
        self._guarding: asyncio.Task[None] | None = None
        self._lanes: dict[int, Lane] = {}
        self._claimed = {0}
        self._readers: dict[int, asyncio.Task[Ending]] = {}
        self._telling: asyncio.TimerHandle | None = None
        self._greetings = 0
        self._order = Order()
        self._spread = Spread()
        self._hearing = Hearing(peer, chunk_bytes, receiver, self)

    @property
    def up(self) -> bool:
        """Whether messages go anywhere, be it later."""
        return 0 in self._lanes and not self._lanes[0].closed

    @property
    def fresh(self) -> bool:
        """Nothing has come on lane 0."""
        return 0 not in self._lanes or not self._lanes[0].heard_index

    @property
    def status(self) -> Status:
        """How the link is."""
        # In any thread: lanes may come meanwhile.
        lanes = tuple(self._lanes.values())
        return self._watch.status._replace(
            connected=0 in self._lanes and self._lanes[0].up,
            connections=sum(lane.up for lane in lanes),
            silent_seconds=self._guard.silent_seconds if self.up else 0.0,
            round_trip_seconds=self.round_trip_seconds,
            queued_bytes=sum(lane.queued_bytes for lane in lanes),
        )

    @property
    def clock_offset_ns(self) -> int | None:
        """The peer's monotonic clock less this node's; None where it is not known."""
        best = self.pulse.clocks.best
        return None if best is None else best.offset

    @property
    def round_trip_seconds(self) -> float | None:
        """To the peer and back, beside whatever is large; None where it is not known."""
        best = self.pulse.clocks.best
        return None if best is None else best.round_trip / 1e9

    def claim(self, lane: int) -> bool:
        """Whether nobody has had this lane; from now on somebody has."""
        free = lane not in self._claimed and not self.closing
        self._claimed.add(lane)
        return free

    def lane(self, number: int) -> Lane:
        """What outlives the streams of this number."""
        if number not in self._lanes:
            self._claimed.add(number)
            settlement = self.settlement
            lane = self._lanes[number] = Lane(self._watch, self._standing.turn, settlement)
            if self.lost:
                lane.drop()
        return self._lanes[number]

    # -- guard.Guarded

    @property
    def signs(self) -> int:
        """See Guarded."""
        return self._watch.frames + self.pulse.heard + self._greetings

    @property
    def down(self) -> Collection[int]:
        """See Guarded."""
        return [number for number, lane in self._lanes.items() if not lane.up | lane.closed]

    def refresh(self, *, wanted: bool) -> None:
        """See Guarded. Whoever dials waits for these events."""
        streams: list[Pulse | Lane] = [self.pulse, *self._lanes.values()]
        for each in streams:
            if wanted:
                each.wanted.set()
            elif each.up:
                each.wanted.clear()

    def beat(self) -> None:
        """See Guarded."""
        if not self.pulse.up and 0 in self._lanes:
            self._lanes[0].tell()

    def probe(self) -> None:
        """Write on every lane: one of which the other side knows nothing any more breaks."""
        for lane in self._lanes.values():
            lane.tell()

    def greeted(self) -> None:
        """The other side has said hello, with this link's key: a sign of life."""
        self._greetings += 1

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
        lanes = [lane for lane in self._lanes.values() if lane.up] or [
            lane for lane in self._lanes.values() if not lane.closed
        ]
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
        return await self._hearing.round_trip(lambda: self._lanes[0].send(frames.short(Ping())))

    def measure(self, part: Part) -> None:
        """See hearing.Speaker."""
        if part.left_at is not None:
            trip = self.round_trip_seconds or 0.0
            self._watch.bandwidth.arrived(part.left_at, part.came_at, trip)

    def answer(self) -> None:
        """Answer a question of the other side's."""
        self._lanes[0].put(Sending(1), frames.short(Pong()))

    def settle(self, before: Key) -> None:
        """See transport.base.Transport.settle."""
        self.settlement.settle(before)
        if not self.settlement.untold:
            return
        if self.settlement.untold >= self._most_untold:
            self._tell()
        elif self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(SETTLE_SECONDS, self._tell)

    def _tell(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        # A lane that has no stream says it with the next.
        if self.settlement.untold and 0 in self._lanes:
            self._lanes[0].tell()

    async def part(self) -> None:
        """Say goodbye on every lane; what was accepted goes before it.

        Returns once the other side has heard it: before that it may ask for what was damaged.
        """
        self.closing = True
        self._drop_idle()
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.put(Sending(1), frames.short(Goodbye()))
        await asyncio.gather(*(lane.parted() for lane in lanes))

    async def close(self) -> None:
        """Drop what is queued."""
        self.closing = True
        self._drop()
        if self._guarding is not None:
            self._guarding.cancel()
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    # -- in

    async def free(self, number: int) -> int:
        """End the stream that a lane has, if any; the last frame that was heard on it.

        Where somebody comes with another one, this one is dead, though we may not know.
        """
        lane = self.lane(number)
        while number in self._readers or not lane.resting:
            if (reader := self._readers.pop(number, None)) is not None:
                reader.cancel()
            await lane.rest()
        return lane.heard_index

    async def serve(self, number: int, read: Read, write: Write, heard: int = 0) -> None:
        """Use a stream as this lane, instead of the one before; returns when it ends.

        The other side has heard so many of the frames that went before.
        """
        await self.free(number)
        lane = self.lane(number)
        if lane.closed:
            return
        try:
            self._watch.reopened_count += lane.served
            lane.open(write, heard)
        except ProtocolError as error:
            self.lose(f"it broke the rules: {error}")
            return
        if self.closing and number:
            lane.put(Sending(1), frames.short(Goodbye()))
        if self._guarding is None:
            self._guarding = asyncio.create_task(self._guard.watch())
        await self._read_on(number, lane, read)

    async def _read_on(self, number: int, lane: Lane, read: Read) -> None:
        reader = self._readers[number] = asyncio.create_task(self._listen(lane, read))
        ending = Ending(NO_GOODBYE)
        try:
            await asyncio.wait([reader])
            if not reader.cancelled():
                ending = OWN_FAULT
                ending = reader.result()
            if not ending.reason:
                await lane.finish()
        finally:
            # Also where gRPC cancels the handler of a stream whose other end has died.
            reader.cancel()
            # Who was replaced has nothing to say.
            if self._readers.get(number) is reader:
                del self._readers[number]
                self._end(number, lane, ending)
                await lane.rest()

    def _end(self, number: int, lane: Lane, ending: Ending) -> None:
        """A lane has no stream any more."""
        final = ending.fault or not self._limits.resumes
        if not ending.reason or (self.closing and (final or ending.clean)):
            lane.drop()
        elif final:
            self.lose(ending.reason)
        else:
            lane.break_off()
            self.trouble = ending.reason
            # Who dials may not know: then that shows it that something is amiss.
            self.pulse.interrupt()
            self._guard.look_soon()
        if number == 0 and lane.closed:
            self.over.set()
        self._drop_idle()
        if self._guarding is not None and all(each.closed for each in self._lanes.values()):
            # Who has said goodbye may be silent.
            self._guarding.cancel()

    def _drop_idle(self) -> None:
        """Both sides have said goodbye: nobody opens a lane again that has no stream."""
        if self.closing and self.over.is_set():
            for lane in self._lanes.values():
                if not lane.up:
                    lane.drop()

    def lose(self, reason: str) -> None:
        """Give the link up."""
        if self.lost:
            return
        self.lost = reason
        self._drop()
        if not self.closing:
            self._receiver.lost(self._peer, reason)

    def _drop(self) -> None:
        self.over.set()
        self.pulse.close()
        if self._telling is not None:
            self._telling.cancel()
        for lane in self._lanes.values():
            lane.drop()
        for reader in self._readers.values():
            reader.cancel()

    async def _listen(self, lane: Lane, read: Read) -> Ending:
        """Hand on what comes; returns how it ended."""
        try:
            while (data := await read()) is not grpc.aio.EOF:
                self._watch.received(len(data))
                heard = lane.take(data)
                if isinstance(heard, Goodbye):
                    return Ending()
                if heard is not None:
                    self._hearing.hear(heard)
        except BROKEN as error:
            return Ending(f"{NO_GOODBYE} ({words(error)})")
        except CorruptedError as error:
            return Ending(str(error), fault=True)
        except (ValueError, ProtocolError) as error:
            return Ending(f"it broke the rules: {error}", fault=True)
        return Ending(NO_GOODBYE, clean=True)
