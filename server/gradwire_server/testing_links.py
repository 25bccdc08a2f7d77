"""Transports of several nodes, linked in one process: for tests of what they promise."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from prometheus_client import CollectorRegistry

from gradwire_proto.v1 import peer_pb2
from gradwire_server.errors import ProtocolError
from gradwire_server.group import Group, Node, Picture
from gradwire_server.metrics import Metrics
from gradwire_server.transport.grpc import METHOD, OPTIONS, GrpcTransport
from gradwire_server.transport.memory import MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from gradwire_server.transport.base import Message, Transport

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Call: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"

PATIENCE_SECONDS = 10.0
CHUNK_BYTES = 1 << 20
SERVICE = METHOD.split("/")[1]


class Inbox:
    """See transport.base.Receiver: keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Message]] = []
        self.losses: list[tuple[int, str]] = []
        self._news = asyncio.Event()

    def receive(self, source: int, message: Message) -> None:
        """See transport.base.Receiver."""
        self.messages.append((source, message))
        self._news.set()

    def lost(self, source: int, reason: str) -> None:
        """See transport.base.Receiver."""
        self.losses.append((source, reason))
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

    def __init__(self, nodes: int, connections: int = 1) -> None:
        self._nodes = nodes
        self._connections = connections
        self._servers: list[grpc.aio.Server] = []
        self._addresses: list[str] = []
        self.inboxes = [Inbox() for _ in range(nodes)]
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
            self._addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            self._servers.append(server)
            await server.start()

    def attach(self, node: int) -> None:
        """Make a node's transport; it has not dialled yet."""
        group = Group(picture(*self._addresses), node)
        self.grpc[node] = GrpcTransport(
            group, CHUNK_BYTES, self.inboxes[node], metrics(), self._connections
        )

    def _acceptor(self, node: int) -> Callable[[Any, Context], Coroutine[Any, Any, None]]:
        async def exchange(_: object, context: Context) -> None:
            hello = peer_pb2.Frame.FromString(await context.read()).hello
            try:
                await self.grpc[node].accept(hello, context.read, context.write)
            except ProtocolError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

        return exchange

    async def kill(self, node: int) -> None:
        """End every stream that was opened to a node, as its death would."""
        await self._servers[node].stop(None)

    async def close(self) -> None:
        """End all links."""
        await asyncio.gather(*(end.close() for end in self.grpc.values()))
        await asyncio.gather(*(server.stop(None) for server in self._servers))

    @contextlib.asynccontextmanager
    async def call(self, node: int) -> AsyncIterator[Call]:
        """A call to a node from anybody."""
        async with grpc.aio.insecure_channel(self._addresses[node], options=OPTIONS) as channel:
            call: Call = channel.stream_stream(METHOD)()
            try:
                yield call
            finally:
                call.cancel()


def picture(*addresses: str) -> Picture:
    """A job of a node at each address, with one rank each."""
    nodes = (
        Node(f"n{node}", address, f"host{node}", (node,))
        for node, address in enumerate(addresses)
    )
    return Picture("g", len(addresses), tuple(nodes))


def metrics() -> Metrics:
    """Metrics in a registry of their own."""
    return Metrics(CollectorRegistry(), "0")
