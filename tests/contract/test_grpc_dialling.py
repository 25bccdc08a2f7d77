"""A stream that a node opens: what its caller's cancelling and its end leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from gradwire_proto.v1 import peer_pb2
from gradwire_server.testing_links import PATIENCE_SECONDS
from gradwire_server.transport.dialling import METHOD, Stream, dial

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HELLO = peer_pb2.Frame(hello=peer_pb2.Hello(node=1)).SerializeToString()
UNREAD_FRAMES = 3
MOST_WRITES = 100
LOOKS, LOOK_SECONDS = 100, 0.1


async def answer(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Say hello, some more that nobody reads, and end."""
    await context.read()
    await context.write(HELLO)
    for _frame in range(UNREAD_FRAMES):
        await context.write(b"unread")


@contextlib.asynccontextmanager
async def answering_node() -> AsyncIterator[int]:
    """The port of one."""
    server = grpc.aio.server()
    service, _, name = METHOD.strip("/").rpartition("/")
    handlers: dict[str, Any] = {name: grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def accept_it(_: peer_pb2.Hello) -> None:
    """See dial."""


async def opened(port: int) -> Stream:
    return await dial((f"127.0.0.1:{port}", 0), HELLO, accept_it, PATIENCE_SECONDS)


def connections(port: int) -> int:
    """How many connections this process has to that port of its own."""
    mine = psutil.Process(os.getpid()).net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == port for each in mine)


async def use_up(stream: Stream) -> None:
    """Write until that fails: the other side has ended."""
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
        for _ in range(MOST_WRITES):
            await stream.call.write(b"a frame")
            await asyncio.sleep(0.01)
        pytest.fail("the stream did not end")


async def leave_alone(_: Stream) -> None:
    """It is in use when it is closed."""


@pytest.mark.parametrize("use", [use_up, leave_alone])
def test_a_closed_stream_gives_its_connection_back(
    use: Callable[[Stream], Awaitable[None]],
) -> None:
    async def stream_of(port: int) -> None:
        stream = await opened(port)
        assert connections(port) == 1
        await use(stream)
        await stream.close()

    async def main() -> None:
        async with answering_node() as port:
            await stream_of(port)
            for _ in range(LOOKS):
                if not connections(port):
                    return
                await asyncio.sleep(LOOK_SECONDS)
            pytest.fail("the connection stays")

    asyncio.run(main())


def test_who_is_cancelled_while_its_call_fails_is_cancelled() -> None:
    """Else a caller that tries again until it is cancelled would never end."""

    async def main() -> None:
        async with answering_node() as port:

            def refuse(_: peer_pb2.Hello) -> None:
                task.cancel()
                raise grpc.aio.UsageError("the call ended just then")

            place = (f"127.0.0.1:{port}", 0)
            task = asyncio.create_task(dial(place, HELLO, refuse, PATIENCE_SECONDS))
            await asyncio.wait([task])
            assert task.cancelled()

    asyncio.run(main())
