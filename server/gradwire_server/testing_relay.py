"""A way between two nodes that tests can break: it hands TCP connections on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from gradwire_proto.addresses import split_address

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 64 << 10
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER so that closing sends an RST."""


class Relay:
    """Listens on loopback, and hands all that comes to one address, and back."""

    def __init__(self) -> None:
        self.opened = 0
        """Connections that came."""
        self.watch: Callable[[int], None] = lambda _: None
        """Told, after each lot of bytes, how many have passed in all."""
        self._passed = 0
        self._server: asyncio.Server | None = None
        self._flows: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._to = ("", 0)

    @property
    def connections(self) -> int:
        """That are open."""
        return len(self._flows)

    async def open(self, address: str) -> str:
        """Begin; returns where it listens."""
        self._to = split_address(address)
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def hold(self) -> None:
        """Let nothing pass any more; what is sent is held up, and nobody is told."""
        self._open.clear()

    def heal(self, *, lossless: bool = True) -> None:
        """Let all pass again; or, as after a partition, only what comes on new connections."""
        if not lossless:
            for flow in self._flows:
                flow.cancel()
        self._open.set()

    def reset(self, which: int | None = None) -> None:
        """End connections, or only one of them in the order of their coming, with an RST."""
        chosen = list(self._flows) if which is None else [list(self._flows)[which]]
        for flow in chosen:
            for writer in self._flows[flow]:
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
            flow.cancel()

    async def close(self) -> None:
        """End all."""
        if self._server is not None:
            self._server.close()
        flows = list(self._flows)
        for flow in flows:
            flow.cancel()
        await asyncio.gather(*flows, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = asyncio.current_task()
        assert flow is not None  # noqa: S101 - asyncio runs this in a task
        self.opened += 1
        writers = self._flows[flow] = [writer]
        try:
            await self._open.wait()
            there = await asyncio.open_connection(*self._to)
            writers.append(there[1])
            # As soon as one direction ends, both do: half a connection is of no use here.
            ways = (self._pass(reader, there[1]), self._pass(there[0], writer))
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        except (OSError, asyncio.CancelledError):
            # asyncio would tell of a connection whose task was cancelled.
            return
        finally:
            del self._flows[flow]
            for each in writers:
                each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
                self._passed += len(data)
                self.watch(self._passed)
