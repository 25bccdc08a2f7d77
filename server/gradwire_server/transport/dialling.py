"""Opens the streams of one link, and opens them again: the work of the node of lower index."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.transport.credentials import PLAIN
from gradwire_server.transport.lane import BROKEN, words
from gradwire_server.transport.stripes import AUTO, lanes_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.group import Node
    from gradwire_server.transport.credentials import Plain
    from gradwire_server.transport.greeting import Greeting
    from gradwire_server.transport.lane import Lane
    from gradwire_server.transport.link import Link
    from gradwire_server.transport.pulse import Pulse
    from gradwire_server.transport.vigil import Limits

log = logging.getLogger(__name__)

METHOD = "/gradwire.v1.Peer/Exchange"

RETRY_SECONDS = 0.2
"""Between two tries to reach a node for the first time."""

FIRST_SECONDS = 5.0
"""A node that has a rank already answers sooner; else the way may be broken."""

AGAIN_SECONDS = 0.15
"""Between two tries to open a stream again, from one's start to the next one's at the least."""

TRY_SECONDS = 1.0
"""Of one: a lost packet of an old one must not delay the next."""

PART_SECONDS = 1.0

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # A proxy meant for the web would be asked even for 127.0.0.1.
    ("grpc.enable_http_proxy", 0),
    # Every channel, and so every lane of every generation, has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A host that vanishes sends nothing: ask, and let the other side allow it (see daemon).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

_FAILED = (*BROKEN, DecodeError, ProtocolError, TimeoutError)
"""What an attempt to open a stream may raise."""


_UNREACHED = ("connection refused", "no route to host", "network is unreachable")
"""What the system says where nobody has heard us."""


class OutrunError(Exception):
    """The other side is at a later attempt of the generation."""

    def __init__(self, attempt: int) -> None:
        super().__init__(f"it is at attempt {attempt}")
        self.attempt = attempt


class Home(Protocol):
    """The node that dials."""

    @property
    def credentials(self) -> Plain:
        """What it shows to others."""
        ...

    @property
    def progress(self) -> Sequence[aggregator_pb2.Progress]:
        """How far its ranks are."""
        ...

    def meet(self, peer: int, hello: pb.Hello) -> Link:
        """A node has answered for the first time."""
        ...

    def hindered(self, peer: int, trouble: str, *, final: bool) -> None:
        """It has not, since; where that is final, there will be no link."""
        ...

    def outrun(self, attempt: int) -> None:
        """A node is at a later attempt."""
        ...


@dataclass(frozen=True, slots=True)
class Stream:
    """One that was opened and answered, and its connection."""

    channel: grpc.aio.Channel
    call: Any
    hello: pb.Hello

    async def part(self) -> None:
        """Goodbye was said: leave the ending to the other side, if it is there."""
        with contextlib.suppress(*_FAILED):
            async with asyncio.timeout(PART_SECONDS):
                await self.call.done_writing()
                while await self.call.read() is not grpc.aio.EOF:
                    pass

    async def close(self) -> None:
        """End it, and its connection."""
        self.call.cancel()
        # Once a write has failed, gRPC takes the call for done and cancels nothing; while the
        # other side's last words were not read, the call then holds its connection for ever.
        self.call._cython_call.cancel("")  # noqa: SLF001 - nothing public ends such a call
        await self.channel.close()


async def dial(
    place: tuple[str, int],
    hello: bytes,
    check: Callable[[pb.Hello], None],
    limit_seconds: float | None,
    credentials: Plain = PLAIN,
) -> Stream:
    """Open a stream to an address, as this lane, over a connection of its own.

    Raises one of _FAILED, or what check does.
    """
    address, lane = place
    channel = credentials.channel(address, [*OPTIONS, ("gradwire.lane", lane)])
    try:
        with _heeding_cancellation():
            async with asyncio.timeout(limit_seconds):
                call: Any = channel.stream_stream(METHOD)()
                await call.write(hello)
                first = await call.read()
                if first is grpc.aio.EOF:
                    raise ProtocolError(f"{await call.details() or 'it hung up'}")
            answer = pb.Frame.FromString(first).hello
            check(answer)
    except BaseException:
        await channel.close()
        raise
    return Stream(channel, call, answer)


@contextlib.contextmanager
def _heeding_cancellation() -> Iterator[None]:
    """Raise CancelledError where the task is cancelled, whatever a call makes of that.

    One that ends at that moment raises its own error instead, and who tries again until it is
    cancelled would do so for ever.
    """
    task = asyncio.current_task()
    requests = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > requests:
            raise asyncio.CancelledError


class Dialler:
    """Of the link to one node."""

    def __init__(
        self, peer: int, node: Node, greeting: Greeting, home: Home, limits: Limits
    ) -> None:
        self._peer = peer
        self._address = node.address
        self._addresses = node.routes
        self._greeting = greeting
        self._home = home
        self._limits = limits

    async def run(self, connections: int) -> None:
        """Return when the link is over, or can't be."""
        stream = await self._reach()
        if stream is None:
            return
        link = self._home.meet(self._peer, stream.hello)
        link.key = stream.hello.key
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(link, 0, self._address, stream))
            beside = (
                tasks.create_task(self._keep_pulse(link, link.pulse)),
                tasks.create_task(self._widen(link, connections, tasks)),
            )
            await link.over.wait()
            for each in beside:
                each.cancel()
        if link.lost:
            # Else the other side would wait for a stream that never comes.
            await self._give_up(link)

    async def _give_up(self, link: Link) -> None:
        hello = self._greeting.over(link.key, link.lost)
        with contextlib.suppress(*_FAILED, OutrunError):
            stream = await self._dial((self._address, 0), hello, TRY_SECONDS)
            await stream.close()

    async def _dial(self, place: tuple[str, int], hello: bytes, limit: float | None) -> Stream:
        return await dial(place, hello, self._check, limit, self._home.credentials)

    def _check(self, hello: pb.Hello) -> None:
        self._greeting.check(hello, range(self._peer, self._peer + 1))
        if hello.attempt > self._greeting.attempt:
            raise OutrunError(hello.attempt)
        if hello.attempt < self._greeting.attempt:
            raise ProtocolError(f"it is still at attempt {hello.attempt}")

    async def _reach(self) -> Stream | None:
        """The first stream of all, however long it takes; None where there will be none."""
        limit = FIRST_SECONDS if self._limits.resumes else None
        while True:
            hello = self._greeting.first(self._home.progress)
            try:
                return await self._dial((self._address, 0), hello, limit)
            except OutrunError as error:
                self._home.outrun(error.attempt)
                return None
            except _FAILED as error:
                final = _refused(error, grpc.StatusCode.ABORTED)
                hindrance = final or await self._hindrance(error)
                self._home.hindered(self._peer, hindrance, final=bool(final))
                if final:
                    return None
            await asyncio.sleep(RETRY_SECONDS)

    async def _hindrance(self, error: Exception) -> str:
        """What is in the way. Where a handshake fails, gRPC does not say why."""
        text = trouble(error)
        if text in _UNREACHED or not _may_be_distrust(error):
            return text
        return await self._home.credentials.explain(self._address) or text

    # -- streams that are opened again

    async def _keep(self, link: Link, number: int, address: str, stream: Stream | None) -> None:
        """See to it that a lane has a stream, until it is done with."""
        lane, loop = link.lane(number), asyncio.get_running_loop()
        if stream is None:
            lane.wanted.set()
        tried = 0.0
        async with asyncio.TaskGroup() as streams:
            while True:
                if stream is not None:
                    lane.wanted.clear()
                    streams.create_task(_serve(link, number, lane, stream))
                await lane.wanted.wait()
                await asyncio.sleep(tried + AGAIN_SECONDS - loop.time())
                if lane.closed:
                    return
                tried = loop.time()
                hello = self._greeting.again(number, lane.heard_index, link.key)
                # Meanwhile one that is only silent goes on, until another takes its place.
                stream = await self._try(link, (address, number), hello)

    async def _keep_pulse(self, link: Link, pulse: Pulse) -> None:
        hello, loop = self._greeting.pulse(link.key), asyncio.get_running_loop()
        async with asyncio.TaskGroup() as streams:
            while True:
                tried = loop.time()
                stream = await self._try(link, (self._address, -1), hello)
                if stream is not None:
                    pulse.wanted.clear()
                    streams.create_task(_serve_pulse(pulse, stream))
                    await pulse.wanted.wait()
                    link.probe()
                if pulse.closed:
                    return
                pause = AGAIN_SECONDS if stream is not None else self._limits.beat_seconds
                await asyncio.sleep(tried + pause - loop.time())

    async def _try(self, link: Link, place: tuple[str, int], hello: bytes) -> Stream | None:
        """A fresh stream of a link that is there; None where it did not work out this time."""
        try:
            stream = await self._dial(place, hello, TRY_SECONDS)
        except OutrunError as error:
            self._home.outrun(error.attempt)
            link.lose(str(error))
        except _FAILED as error:
            link.trouble = trouble(error)
            refused = _refused(error, grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT)
            if refused and place[1] >= 0:
                link.lose(refused)
        else:
            link.greeted()
            return stream
        return None

    # -- further lanes

    async def _widen(self, link: Link, count: int, tasks: asyncio.TaskGroup) -> None:
        """Open further lanes once there is something for them to carry."""
        peer, addresses, way = self._peer, self._addresses, ""
        if count == AUTO:
            # Now, while nothing else is on the way: later the bulk would be measured.
            round_trip = await link.round_trip()
            count, way = (
                lanes_for(round_trip, len(addresses)),
                f"round trip {round_trip * 1e3:.2g} ms, ",
            )
        await link.bulk.wait()
        opening = (
            self._open_lane(link, (addresses[lane % len(addresses)], lane), count, tasks)
            for lane in range(1, count)
        )
        for trouble_ in sorted({*await asyncio.gather(*opening)} - {""}):
            log.warning(
                "link to node %d: no connection to %s", peer, trouble_, extra=link.subject
            )
        what = peer, way, link.status.connections
        log.info("link to node %d: %s%d connections", *what, extra=link.subject)

    async def _open_lane(
        self, link: Link, place: tuple[str, int], count: int, tasks: asyncio.TaskGroup
    ) -> str:
        """Once the other side has taken it, a lane is served by a task of its own.

        Returns what stood in the way, or nothing. Before that it ends with its caller, whom the
        end of the link cancels: a peer that is done with the generation may never answer.
        """
        address, lane = place
        hello = self._greeting.another(lane, count, link.key)
        stream: Stream | None = None
        try:
            limit = FIRST_SECONDS if self._limits.resumes else None
            stream = await self._dial(place, hello, limit)
        except _FAILED as error:
            if not self._limits.resumes or not _may_have_come(error):
                return f"{address}: {words(error)}"
        # Where only the answer was lost, the other side counts on the lane: then it must come.
        tasks.create_task(self._keep(link, lane, address, stream))
        # So that the link has it when it is told of.
        await asyncio.sleep(0)
        return ""


async def _serve(link: Link, number: int, lane: Lane, stream: Stream) -> None:
    try:
        await link.serve(number, stream.call.read, stream.call.write, stream.hello.heard)
        if lane.closed and not link.lost:
            await stream.part()
    finally:
        await stream.close()


async def _serve_pulse(pulse: Pulse, stream: Stream) -> None:
    try:
        await pulse.serve(stream.call.read, stream.call.write)
    finally:
        await stream.close()


def trouble(error: Exception) -> str:
    """What is in the way of a stream, in few words where the system has some."""
    if isinstance(error, TimeoutError):
        return "no answer"
    text = words(error)
    return next((each for each in _UNREACHED if each in text.lower()), text)


def _may_be_distrust(error: Exception) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and (
        error.code() == grpc.StatusCode.UNAVAILABLE
    )


def _refused(error: Exception, *codes: grpc.StatusCode) -> str:
    """What the other side says where it is no use to try again."""
    if isinstance(error, grpc.aio.AioRpcError) and error.code() in codes:
        return error.details() or error.code().name
    return ""


def _may_have_come(error: Exception) -> bool:
    """Whether the other side may have heard of it, and not refused."""
    if isinstance(error, grpc.aio.AioRpcError):
        unavailable = error.code() == grpc.StatusCode.UNAVAILABLE
        return unavailable and "failed to connect" not in (error.details() or "")
    return isinstance(error, TimeoutError)
