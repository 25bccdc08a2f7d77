"""How a link of two lanes ends, over streams that break when they are told to."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from gradwire_server.testing_links import CHUNK_BYTES, Inbox
from gradwire_server.transport.grpc import GOODBYE_SECONDS
from gradwire_server.transport.link import Link
from gradwire_server.transport.precedence import ALONE
from gradwire_server.transport.vigil import Limits
from gradwire_server.transport.watch import Watch

TURNS = 1000
"""Of the event loop, which are enough for both sides."""


class Pipe:
    """One lane's stream, both ways."""

    def __init__(self) -> None:
        self.ways: list[asyncio.Queue[bytes | None]] = [asyncio.Queue(), asyncio.Queue()]
        self.broken = False

    def end(self, side: int) -> tuple[Any, Any]:
        """What one side reads and writes with."""

        async def read() -> bytes:
            data = await self.ways[side].get()
            if data is None:
                raise grpc.aio.UsageError("it broke")
            return data

        async def write(data: bytes) -> None:
            if self.broken:
                raise grpc.aio.UsageError("it broke")
            self.ways[1 - side].put_nowait(data)

        return read, write

    def break_off(self) -> None:
        """Both sides hear of it."""
        self.broken = True
        for way in self.ways:
            way.put_nowait(None)


def link(peer: int) -> Link:
    limits = Limits.of(60.0, 30.0)
    watch = Watch(peer, ALONE)
    return Link(peer, "a node", CHUNK_BYTES, Inbox(), watch, ALONE, limits, 3)


async def until(links: list[Link], connections: int) -> None:
    for _ in range(TURNS):
        if all(each.status.connections == connections for each in links):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"not {connections} connections")


def test_a_lane_that_broke_does_not_hold_up_a_goodbye() -> None:
    """The node that opens lanes may have begun one, and be done before the other side is."""

    async def main() -> None:
        links, pipes = [link(1), link(0)], [Pipe(), Pipe()]
        serving = [
            asyncio.create_task(each.serve(lane, *pipe.end(side)))
            for lane, pipe in enumerate(pipes)
            for side, each in enumerate(links)
        ]
        await until(links, 2)
        pipes[1].break_off()
        await until(links, 1)
        async with asyncio.timeout(GOODBYE_SECONDS):
            await asyncio.gather(*(each.part() for each in links))
        for each in links:
            await each.close()
        await asyncio.gather(*serving)

    asyncio.run(main())
