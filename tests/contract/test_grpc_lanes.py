"""How many connections a link has, and over which addresses, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING

import psutil
import pytest

from gradwire_proto.addresses import split_address
from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.round import Key, Spec
from gradwire_server.testing_links import (
    CHUNK_BYTES,
    PATIENCE_SECONDS,
    GrpcLinks,
)
from gradwire_server.transport.base import Part
from gradwire_server.transport.stripes import AUTO, FAR_LANES, NEAR_LANES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

DEAD_HOST = "127.0.0.9"
"""Where nobody listens, though some nodes say that they do."""


def bulk(sequence: int) -> Part:
    key, spec = Key(sequence, 0), Spec(pb.OP_SUM, pb.DTYPE_INT8, 1000, 0)
    payload = memoryview(bytes(8 * CHUNK_BYTES))
    return Part(key, peer_pb2.SCHEDULE_RING, 0, 0, 1.0, spec, (payload,))


async def until(there: Callable[[], bool]) -> None:
    """Return once this is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not there():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


def connected(links: GrpcLinks, connections: int) -> Callable[[], bool]:
    """Whether both ends of the link have so many."""
    return lambda: all(
        links.grpc[node].status()[1 - node].connections == connections for node in range(2)
    )


PULSE = 1
"""Every link has one connection more, which carries nothing but heartbeats."""


def sockets(address: str) -> int:
    """TCP connections of this process that lead to an address."""
    host, port = split_address(address)
    return sum(
        bool(each.raddr)
        and (each.raddr.ip.removeprefix("::ffff:"), each.raddr.port) == (host, port)
        and each.status == psutil.CONN_ESTABLISHED
        for each in psutil.Process().net_connections("tcp")
    )


@contextlib.asynccontextmanager
async def two_nodes(
    connections: int, hosts: Sequence[str] = ("127.0.0.1",), dead: tuple[str, ...] = ()
) -> AsyncIterator[GrpcLinks]:
    links = GrpcLinks(2, connections, hosts=hosts, dead=dead)
    try:
        await links.open()
        yield links
    finally:
        await links.close()
    assert links.inboxes[0].losses == links.inboxes[1].losses == []


@pytest.mark.parametrize("sender", [0, 1])
@pytest.mark.parametrize("connections", [1, 2, 4, 9])
def test_there_are_as_many_tcp_connections_as_were_asked_for(
    connections: int, sender: int
) -> None:
    async def main() -> None:
        async with two_nodes(connections) as links:
            (address,) = links.addresses[1]
            await until(lambda: sockets(address) >= 1 + PULSE)
            assert sockets(address) == 1 + PULSE, "more once there is something for them"
            for sequence in range(20):
                await links.ends[sender].send(1 - sender, bulk(sequence))
                await until(connected(links, connections))
                assert sockets(address) == connections + PULSE

    asyncio.run(main())


def test_left_to_itself_a_link_gets_as_many_connections_as_suit_the_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> int:
        async with two_nodes(AUTO) as links:
            await links.ends[1].send(0, bulk(0))
            await until(lambda: bool(caplog.messages))
            return links.grpc[0].status()[1].connections

    caplog.set_level(logging.INFO, "gradwire_server.transport.dialling")
    count = asyncio.run(main())
    assert count in {NEAR_LANES, FAR_LANES}
    (line,) = caplog.messages
    assert re.fullmatch(rf"link to node 1: round trip [\d.e+-]+ ms, {count} connections", line)


def test_connections_are_spread_over_all_addresses_of_a_node() -> None:
    async def main() -> None:
        async with two_nodes(6, ("127.0.0.1", "127.0.0.2", "127.0.0.3")) as links:
            await links.ends[0].send(1, bulk(0))
            await until(connected(links, 6))
            first, *others = (sockets(address) for address in links.addresses[1])
            assert [first - PULSE, *others] == [2, 2, 2]

    asyncio.run(main())


def dialled(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of connections; loops of other tests may have their say, too."""
    return [each.getMessage() for each in caplog.records if each.name.endswith(".dialling")]


def test_a_link_goes_on_without_the_connections_that_can_not_be_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with two_nodes(5, dead=(f"{DEAD_HOST}:1",)) as links:
            for sender in range(2):
                await links.ends[sender].send(1 - sender, bulk(0))
                inbox = links.inboxes[1 - sender]
                await inbox.until(lambda inbox=inbox: bool(inbox.messages))  # type: ignore[misc]
            await until(lambda: len(dialled(caplog)) == 2)
            assert connected(links, 3)()

    caplog.set_level(logging.INFO, "gradwire_server.transport.dialling")
    asyncio.run(main())
    trouble, done = dialled(caplog)
    assert trouble.startswith(f"link to node 1: no connection to {DEAD_HOST}:1: UNAVAILABLE")
    assert done == "link to node 1: 3 connections"
