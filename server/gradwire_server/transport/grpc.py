"""Links over gRPC: one stream a pair of nodes, opened by the node of lower index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.errors import LostError, ProtocolError
from gradwire_server.transport.frames import decode, encode

if TYPE_CHECKING:
    from gradwire_server.group import Group
    from gradwire_server.metrics import Metrics, Traffic
    from gradwire_server.transport.base import Message, Receiver

log = logging.getLogger(__name__)

METHOD = "/gradwire.v1.Peer/Exchange"
RETRY_SECONDS = 0.2
GOODBYE_SECONDS = 2.0

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # A proxy meant for the web would be asked even for 127.0.0.1.
    ("grpc.enable_http_proxy", 0),
    # Every generation has connections of its own.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A host that vanishes sends nothing: ask, and let the other side allow it (see daemon).
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

_BROKEN = (
    grpc.RpcError,
    grpc.aio.InternalError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
)

Read = Callable[[], Awaitable[Any]]
Write = Callable[[bytes], Awaitable[None]]


class _Link:
    """One stream, written in order by a task of its own: a cancelled write would end it."""

    def __init__(self, write: Write, traffic: Traffic) -> None:
        self._write = write
        self._traffic = traffic
        self._queue: asyncio.Queue[tuple[Message | None, asyncio.Future[None]]] = (
            asyncio.Queue()
        )
        self._writer = asyncio.create_task(self._pump())
        self.up = True
        self.sent_bytes = 0
        self.received_bytes = 0

    async def send(self, message: Message | None) -> None:
        """See Transport.send; None says goodbye.

        The queue has no bound of its own: chunks in flight have one, and each is queued once a
        hop.
        """
        if self.up:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.put_nowait((message, written))
            await written

    def received(self, size: int) -> None:
        """Count what came."""
        self.received_bytes += size
        self._traffic.received.inc(size)

    async def close(self) -> None:
        """Drop what is queued, and with it every view of the arena."""
        self.up = False
        self._writer.cancel()
        await asyncio.wait([self._writer])

    async def _pump(self) -> None:
        try:
            while self.up:
                message, written = await self._queue.get()
                try:
                    if not written.cancelled():
                        await self._put(message)
                finally:
                    _settle(written)
        except _BROKEN:
            log.debug("a link broke under a write; its reader says so")
        finally:
            self.up = False
            while not self._queue.empty():
                _settle(self._queue.get_nowait()[1])

    async def _put(self, message: Message | None) -> None:
        # Encoding is the copy: whatever happens to the buffer from now on, the frame is whole.
        frame = encode(message)
        self.sent_bytes += len(frame)
        self._traffic.sent.inc(len(frame))
        await self._write(frame)


class GrpcTransport:
    """See transport.base.Transport."""

    def __init__(
        self, group: Group, chunk_bytes: int, receiver: Receiver, metrics: Metrics
    ) -> None:
        self._group = group
        self._chunk_bytes = chunk_bytes
        self._receiver = receiver
        self._metrics = metrics
        self._links: dict[int, _Link] = {}
        self._accepted: set[int] = set()
        self._parted: set[int] = set()
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

    def status(self) -> dict[int, tuple[bool, int, int]]:
        """For each peer: connected, bytes sent, bytes received."""
        return {
            peer: (link.up, link.sent_bytes, link.received_bytes)
            if (link := self._links.get(peer)) is not None
            else (False, 0, 0)
            for peer in self._group.peers
        }

    async def send(self, target: int, message: Message) -> None:
        """See transport.base.Transport."""
        if (link := self._links.get(target)) is not None:
            await link.send(message)

    async def close(self) -> None:
        """See transport.base.Transport."""
        self._closing = True
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await asyncio.gather(*(link.send(None) for link in self._links.values()))
        except TimeoutError:
            log.info("a peer did not take its goodbye")
        # The other side ends the stream once it has read the goodbye; before that, a cancelled
        # call could overtake it.
        linked = [self._dials[peer] for peer in self._links if peer in self._dials]
        if linked:
            await asyncio.wait(linked, timeout=GOODBYE_SECONDS)
        for task in self._dials.values():
            task.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)
        for peer, link in self._links.items():
            await link.close()
            self._metrics.release_peer(self._group.picture.nodes[peer].address)

    async def accept(self, hello: pb.Hello, read: Read, write: Write) -> None:
        """Serve a stream that a node of lower index has opened; returns when it ends."""
        self._check(hello, range(self._group.node))
        if hello.node in self._accepted:
            raise ProtocolError(f"node {hello.node} is linked already")
        self._accepted.add(hello.node)
        await write(_hello(self._group, self._chunk_bytes))
        await self._serve(hello.node, read, write)

    # -- dialling

    async def _dial(self, peer: int) -> None:
        address = self._group.picture.nodes[peer].address
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            while not self._closing:
                call: Any = channel.stream_stream(METHOD)()
                try:
                    await call.write(_hello(self._group, self._chunk_bytes))
                    first = await call.read()
                    if first is grpc.aio.EOF:
                        raise ProtocolError(f"{await call.details() or 'it hung up'}")
                    hello = pb.Frame.FromString(first).hello
                    self._check(hello, range(peer, peer + 1))
                except (grpc.RpcError, DecodeError, ProtocolError) as error:
                    self._trouble[peer] = _words(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                await self._serve(peer, call.read, call.write)
                call.cancel()
                return

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

    # -- a stream that is up

    async def _serve(self, peer: int, read: Read, write: Write) -> None:
        address = self._group.picture.nodes[peer].address
        link = self._links[peer] = _Link(write, self._metrics.hold_peer(address))
        self._changed.set()
        reason = "its process or its connection ended without a goodbye"
        try:
            while (data := await read()) is not grpc.aio.EOF:
                link.received(len(data))
                message = decode(data)
                if message is None:
                    self._parted.add(peer)
                    break
                self._receiver.receive(peer, message)
        except _BROKEN as error:
            reason = f"{reason} ({_words(error)})"
        except (ValueError, ProtocolError) as error:
            reason = f"it broke the rules: {error}"
        finally:
            # Also where gRPC cancels the handler of a stream whose other end has died.
            link.up = False
            if not self._closing and peer not in self._parted:
                self._receiver.lost(peer, reason)


def _settle(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)


def _hello(group: Group, chunk_bytes: int) -> bytes:
    hello = pb.Hello(
        protocol=PROTOCOL,
        generation=group.picture.generation,
        node=group.node,
        chunk_bytes=chunk_bytes,
    )
    return pb.Frame(hello=hello).SerializeToString()
