"""Links over gRPC: one or more streams a pair of nodes, opened by the node of lower index."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.errors import LostError, ProtocolError
from gradwire_server.transport.lane import BROKEN
from gradwire_server.transport.link import Link, Status, words
from gradwire_server.transport.precedence import ALONE
from gradwire_server.transport.stripes import AUTO, MOST_LANES, lanes_for

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.group import Group
    from gradwire_server.metrics import Metrics
    from gradwire_server.transport.base import Message, PostReceiver
    from gradwire_server.transport.lane import Read, Write
    from gradwire_server.transport.precedence import Standing

log = logging.getLogger(__name__)

METHOD = "/gradwire.v1.Peer/Exchange"
RETRY_SECONDS = 0.2
GOODBYE_SECONDS = 2.0

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


class GrpcTransport:
    """See transport.base.Transport."""

    def __init__(  # noqa: PLR0913 - what links are made of; Job puts it together
        self,
        group: Group,
        chunk_bytes: int,
        receiver: PostReceiver,
        metrics: Metrics,
        connections: int = AUTO,
        standing: Standing = ALONE,
    ) -> None:
        self._group = group
        self._chunk_bytes = chunk_bytes
        self._receiver = receiver
        self._metrics = metrics
        self._connections = connections
        self._standing = standing
        self._links: dict[int, Link] = {}
        self._held: list[str] = []
        self._accepted: set[int] = set()
        self._changed = asyncio.Event()
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._trouble: dict[int, str] = {}
        self._closing = False

    def dial(self) -> None:
        """Open the streams that are this node's to open, and keep trying."""
        higher = [peer for peer in self._group.peers if peer > self._group.node]
        self._dials = {peer: asyncio.create_task(self._dial(peer)) for peer in higher}

    async def linked(self, timeout_seconds: float) -> None:
        """Return once all nodes are linked; raise LostError, with what is in the way, if not.

        Raises the job's own failure where it fails meanwhile.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._unlinked():
                    if self._group.failure is not None:
                        raise self._group.failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            missing = "; ".join(self._describe(peer) for peer in self._unlinked())
            raise LostError(
                f"node {self._group.node} waited {timeout_seconds:g} s for {missing}"
            ) from None

    def wake(self) -> None:
        """The job has failed; nobody need wait for links any more."""
        self._changed.set()

    def status(self) -> dict[int, Status]:
        """How the link to each peer is."""
        return {
            peer: link.status if (link := self._links.get(peer)) is not None else Status()
            for peer in self._group.peers
        }

    async def send(self, target: int, message: Message) -> None:
        """See transport.base.Transport."""
        if (link := self._links.get(target)) is not None:
            await link.send(message)

    def post(self, target: int, note: aggregator_pb2.Note, payload: memoryview) -> None:
        """See office.Roads."""
        if (link := self._links.get(target)) is not None:
            link.post(note, payload)

    async def close(self) -> None:
        """See transport.base.Transport."""
        self._closing = True
        linked = [self._dials[peer] for peer in self._links if peer in self._dials]
        try:
            # Before a goodbye was read, a cancelled call could overtake it.
            async with asyncio.timeout(GOODBYE_SECONDS):
                await asyncio.gather(*(link.part() for link in self._links.values()))
                if linked:
                    await asyncio.wait(linked)
        except TimeoutError:
            log.info("a peer did not take its goodbye")
        for task in self._dials.values():
            task.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)
        for link in self._links.values():
            await link.close()
        for address in self._held:
            self._metrics.release_peer(address)

    async def accept(self, hello: pb.Hello, read: Read, write: Write) -> None:
        """Serve a stream that a node of lower index has opened; returns when it ends."""
        self._check(hello, range(self._group.node))
        if hello.lane:
            await self._accept_lane(hello, read, write)
            return
        if hello.node in self._accepted:
            raise ProtocolError(f"node {hello.node} is linked already")
        self._accepted.add(hello.node)
        link = self._make(hello.node)
        await write(self._hello(0, key=link.key))
        await self._serve(hello.node, link, read, write)

    async def _accept_lane(self, hello: pb.Hello, read: Read, write: Write) -> None:
        link = self._links.get(hello.node)
        if link is None or not link.up or not secrets.compare_digest(link.key, hello.key):
            raise ProtocolError(f"node {hello.node} has no link that lane {hello.lane} is of")
        if hello.lane >= MOST_LANES or not link.claim(hello.lane):
            raise ProtocolError(f"node {hello.node} can't have another lane {hello.lane}")
        await write(self._hello(hello.lane))
        await link.serve(hello.lane, read, write)

    # -- dialling

    async def _dial(self, peer: int) -> None:
        address = self._group.picture.nodes[peer].address
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            while not self._closing:
                call: Any = channel.stream_stream(METHOD)()
                try:
                    hello = await self._greet(peer, call, self._hello(0))
                except (*BROKEN, DecodeError, ProtocolError) as error:
                    self._trouble[peer] = words(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                link = self._make(peer)
                link.key = hello.key
                async with asyncio.TaskGroup() as lanes:
                    widening = lanes.create_task(self._widen(peer, link, lanes))
                    await self._serve(peer, link, call.read, call.write)
                    call.cancel()
                    widening.cancel()
                return

    async def _greet(self, peer: int, call: Any, hello: bytes) -> pb.Hello:  # noqa: ANN401
        """The other side's hello. Raises what gRPC does, DecodeError or ProtocolError."""
        await call.write(hello)
        first = await call.read()
        if first is grpc.aio.EOF:
            raise ProtocolError(f"{await call.details() or 'it hung up'}")
        answer = pb.Frame.FromString(first).hello
        self._check(answer, range(peer, peer + 1))
        return answer

    async def _widen(self, peer: int, link: Link, lanes: asyncio.TaskGroup) -> None:
        """Open further lanes once there is something for them to carry."""
        addresses = self._group.picture.nodes[peer].routes
        count, way = self._connections, ""
        if count == AUTO:
            # Now, while nothing else is on the way: later the bulk would be measured.
            round_trip = await link.round_trip()
            count, way = (
                lanes_for(round_trip, len(addresses)),
                f"round trip {round_trip * 1e3:.2g} ms, ",
            )
        await link.bulk.wait()
        opening = (
            self._open_lane(peer, link, (lane, count, addresses[lane % len(addresses)]), lanes)
            for lane in range(1, count)
        )
        for trouble in sorted({*await asyncio.gather(*opening)} - {""}):
            log.warning("link to node %d: no connection to %s", peer, trouble)
        log.info("link to node %d: %s%d connections", peer, way, link.status.connections)

    async def _open_lane(
        self, peer: int, link: Link, place: tuple[int, int, str], lanes: asyncio.TaskGroup
    ) -> str:
        """Once the other side has taken it, a lane is served by a task of its own.

        Returns what stood in the way, or nothing. Before that it ends with its caller, whom the
        end of the link cancels: a peer that is done with the generation may never answer.
        """
        lane, count, address = place
        options = [*OPTIONS, ("gradwire.lane", lane)]
        channel = grpc.aio.insecure_channel(address, options=options)
        call: Any = channel.stream_stream(METHOD)()
        try:
            await self._greet(peer, call, self._hello(lane, lanes=count, key=link.key))
        except BaseException as error:
            await channel.close()
            if isinstance(error, (*BROKEN, DecodeError, ProtocolError)):
                return f"{address}: {words(error)}"
            raise
        lanes.create_task(self._serve_lane(link, lane, channel, call))
        # So that the link has it when it is told of.
        await asyncio.sleep(0)
        return ""

    async def _serve_lane(
        self,
        link: Link,
        lane: int,
        channel: grpc.aio.Channel,
        call: Any,  # noqa: ANN401
    ) -> None:
        async with channel:
            await link.serve(lane, call.read, call.write)
            call.cancel()

    def _hello(self, lane: int, *, lanes: int = 0, key: bytes = b"") -> bytes:
        hello = pb.Hello(
            protocol=PROTOCOL,
            generation=self._group.picture.generation,
            node=self._group.node,
            chunk_bytes=self._chunk_bytes,
            lane=lane,
            lanes=lanes,
            key=key,
        )
        return pb.Frame(hello=hello).SerializeToString()

    def _make(self, peer: int) -> Link:
        address = self._group.picture.nodes[peer].address
        traffic = self._metrics.hold_peer(address)
        self._held.append(address)
        link = Link(peer, self._chunk_bytes, self._receiver, traffic, self._standing)
        link.closing = self._closing
        return link

    def _check(self, hello: pb.Hello, nodes: range) -> None:
        expected = (PROTOCOL, self._group.picture.generation, self._chunk_bytes)
        got = (hello.protocol, hello.generation, hello.chunk_bytes)
        if got != expected or hello.node not in nodes:
            raise ProtocolError(
                f"node {self._group.node} expected a hello with protocol, generation and"
                f" chunk_bytes {expected} from a node in {list(nodes)}, got {got} from node"
                f" {hello.node}"
            )

    def _unlinked(self) -> list[int]:
        return [peer for peer in self._group.peers if peer not in self._links]

    def _describe(self, peer: int) -> str:
        default = "nothing has come from it" if peer < self._group.node else "no answer"
        trouble = self._trouble.get(peer, default)
        return f"{self._group.picture.describe(peer)}: {trouble}"

    async def _serve(self, peer: int, link: Link, read: Read, write: Write) -> None:
        self._links[peer] = link
        self._changed.set()
        await link.serve(0, read, write)
