"""Transports of several nodes, linked in one process: for tests of what they promise."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from prometheus_client import CollectorRegistry

from gradwire_proto.v1 import peer_pb2
from gradwire_server.errors import LostError, ProtocolError
from gradwire_server.group import Group, Node, Picture
from gradwire_server.metrics import Metrics
from gradwire_server.testing_relay import Relay
from gradwire_server.transport.dialling import METHOD, OPTIONS
from gradwire_server.transport.grpc import GrpcTransport
from gradwire_server.transport.memory import MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence

    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.round import Key
    from gradwire_server.transport.base import Message, Transport
    from gradwire_server.transport.lane import Read, Write

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Call: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

PATIENCE_SECONDS = 10.0
LONGEST_DELAY_SECONDS = 0.003
CHUNK_BYTES = 1 << 20
SERVICE = METHOD.split("/")[1]


class Inbox:
    """See transport.base.PostReceiver: keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Message]] = []
        self.notes: list[tuple[int, aggregator_pb2.Note, bytes]] = []
        self.losses: list[tuple[int, str]] = []
        self.settlements: list[tuple[int, Key]] = []
        self.attempts: list[int] = []
        self._news = asyncio.Event()

    def receive(self, source: int, message: Message) -> None:
        """See transport.base.Receiver."""
        self.messages.append((source, message))
        self._news.set()

    def post(self, source: int, note: aggregator_pb2.Note, payload: memoryview) -> None:
        """See transport.base.PostReceiver."""
        self.notes.append((source, note, bytes(payload)))
        self._news.set()

    def lost(self, source: int, reason: str) -> None:
        """See transport.base.Receiver."""
        self.losses.append((source, reason))
        self._news.set()

    def settled(self, source: int, before: Key) -> None:
        """See transport.base.Receiver."""
        self.settlements.append((source, before))
        self._news.set()

    def outrun(self, attempt: int) -> None:
        """See transport.base.Receiver."""
        self.attempts.append(attempt)
        self._news.set()

    async def until(self, there: Callable[[], bool]) -> None:
        """Return once this is true; it is asked whenever something came."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not there():
                self._news.clear()
                await self._news.wait()


class MemoryLinks:
    """Nodes linked by a MemoryNetwork."""

    def __init__(self, nodes: int) -> None:
        self._network = MemoryNetwork()
        self.inboxes = [Inbox() for _ in range(nodes)]
        self.ends: Mapping[int, Transport] = {
            node: self._network.attach(node, inbox) for node, inbox in enumerate(self.inboxes)
        }

    async def kill(self, node: int) -> None:
        """Break every link of a node."""
        self._network.sever(node)

    async def open(self) -> None:
        """Nothing is to be waited for."""

    async def close(self) -> None:
        """End all links."""
        await asyncio.gather(*(end.close() for end in self.ends.values()))


class GrpcLinks:
    """Nodes linked by gRPC over loopback."""

    def __init__(  # noqa: PLR0913 - each what another kind of test is about
        self,
        nodes: int,
        connections: int = 1,
        *,
        hosts: Sequence[str] = ("127.0.0.1",),
        dead: tuple[str, ...] = (),
        seed: int | None = None,
        damage: Callable[[int, bytes], bytes] | None = None,
        relayed: bool = False,
        resume_seconds: float = 0.0,
        timeout_seconds: float = 60.0,
    ) -> None:
        """Every node listens on all hosts, and says that it does on the dead addresses, too.

        Relayed, all that is sent to node n goes by way of relays[n].

        With a seed, frames are held up on their way. damage(node, frame) gives what comes of
        what a node has written; it is not asked of hellos.
        """
        self._dead = dead
        self._nodes = nodes
        self._connections = connections
        self._hosts = hosts
        self._random = None if seed is None else random.Random(seed)  # noqa: S311 - delays
        self._damage = damage
        self._relayed = relayed
        self._seconds = (resume_seconds, timeout_seconds)
        self._servers: list[grpc.aio.Server] = []
        self.relays: list[Relay] = []
        self.refusals: dict[int, LostError] = {}
        """Nodes where the job is over, and what they say."""
        self.addresses: list[tuple[str, ...]] = []
        self.inboxes = [Inbox() for _ in range(nodes)]
        self.metrics: dict[int, Metrics] = {}
        self.grpc: dict[int, GrpcTransport] = {}

    @property
    def ends(self) -> Mapping[int, Transport]:
        """Each node's transport."""
        return self.grpc

    async def open(self) -> None:
        """Return once all nodes are linked."""
        await self.serve()
        for node in range(self._nodes):
            self.attach(node)
        for end in self.grpc.values():
            end.dial()
        for end in self.grpc.values():
            await end.linked(PATIENCE_SECONDS)

    async def serve(self) -> None:
        """Listen for every node; whoever is attached accepts."""
        for node in range(self._nodes):
            server = grpc.aio.server(options=OPTIONS)
            handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
                "Exchange": grpc.stream_stream_rpc_method_handler(self._acceptor(node))
            }
            handler = grpc.method_handlers_generic_handler(SERVICE, handlers)
            server.add_generic_rpc_handlers([handler])
            alive = (f"{host}:{server.add_insecure_port(f'{host}:0')}" for host in self._hosts)
            self.addresses.append((*alive, *self._dead))
            self._servers.append(server)
            await server.start()
            if self._relayed:
                self.relays.append(relay := Relay())
                self.addresses[node] = (await relay.open(self.addresses[node][0]),)

    def attach(self, node: int, attempt: int = 0) -> None:
        """Make a node's transport; it has not dialled yet."""
        group = Group(picture(*self.addresses), node)
        self.metrics[node] = metrics()
        resume_seconds, timeout_seconds = self._seconds
        self.grpc[node] = GrpcTransport(
            group,
            CHUNK_BYTES,
            self.inboxes[node],
            self.metrics[node],
            self._connections,
            attempt=attempt,
            resume_seconds=resume_seconds,
            timeout_seconds=timeout_seconds,
        )

    def _acceptor(self, node: int) -> Callable[[Any, Context], Coroutine[Any, Any, None]]:
        async def exchange(_: object, context: Context) -> None:
            hello = peer_pb2.Frame.FromString(await context.read()).hello
            read: Read = self._held_up(context.read)
            write: Write = self._held_up(context.write)
            if not hello.pulse:
                read, write = self._damaged(hello.node, node, read, write)
            try:
                if (refusal := self.refusals.get(node)) is not None:
                    raise refusal
                await self.grpc[node].accept(hello, read, write)
            except ProtocolError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except LostError as error:
                await context.abort(grpc.StatusCode.ABORTED, str(error))

        return exchange

    def _held_up(self, act: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Reads or writes each frame of one stream after a while of its own."""

        async def later(*arguments: object) -> Any:  # noqa: ANN401
            if self._random is not None:
                await asyncio.sleep(self._random.random() * LONGEST_DELAY_SECONDS)
            return await act(*arguments)

        return later

    def _damaged(self, dialled: int, node: int, read: Read, write: Write) -> tuple[Read, Write]:
        """One stream's, with frames damaged on their way."""
        damage = self._damage
        if damage is None:
            return read, write
        greeted = False

        async def damaged_read() -> Any:  # noqa: ANN401 - EOF has no type
            data = await read()
            return data if data is grpc.aio.EOF else damage(dialled, data)

        async def damaged_write(data: bytes) -> None:
            nonlocal greeted
            await write(damage(node, data) if greeted else data)
            greeted = True

        return damaged_read, damaged_write

    async def kill(self, node: int) -> None:
        """End every stream that was opened to a node, as its death would."""
        await self._servers[node].stop(None)

    async def close(self) -> None:
        """End all links."""
        await asyncio.gather(*(end.close() for end in self.grpc.values()))
        await asyncio.gather(*(relay.close() for relay in self.relays))
        await asyncio.gather(*(server.stop(None) for server in self._servers))

    @contextlib.asynccontextmanager
    async def call(self, node: int) -> AsyncIterator[Call]:
        """A call to a node from anybody."""
        async with grpc.aio.insecure_channel(
            self.addresses[node][0], options=OPTIONS
        ) as channel:
            call: Call = channel.stream_stream(METHOD)()
            try:
                yield call
            finally:
                call.cancel()


def picture(*nodes: tuple[str, ...]) -> Picture:
    """A job of a node at each of these addresses, with one rank each."""
    made = (
        Node(f"n{node}", addresses[0], f"host{node}", (node,), addresses)
        for node, addresses in enumerate(nodes)
    )
    return Picture("g", len(nodes), tuple(made))


def metrics() -> Metrics:
    """Metrics in a registry of their own."""
    return Metrics(CollectorRegistry(), "0")
