"""Links inside one process, for tests and simulations.

It buffers nothing: `send` returns only when the other side has taken the message, one event
loop turn later at the soonest, and the message has bytes of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire_server.transport.base import Message, Part, Receiver

if TYPE_CHECKING:
    from gradwire_server.round import Key


class MemoryNetwork:
    """Connects the transports of all nodes of a job."""

    def __init__(self) -> None:
        self._receivers: dict[int, Receiver] = {}
        self._severed: set[tuple[int, int]] = set()

    def attach(self, node: int, receiver: Receiver) -> MemoryTransport:
        """The transport of one node; what arrives for it goes to receiver."""
        self._receivers[node] = receiver
        return MemoryTransport(self, node)

    def sever(self, node: int) -> None:
        """Break every link of a node; both sides are told."""
        for other in self._receivers:
            if other != node:
                self._severed |= {(node, other), (other, node)}
                self._receivers[other].lost(node, "severed")
                self._receivers[node].lost(other, "severed")

    def cut(self, node: int) -> None:
        """Nothing passes between a node and the others any more; nobody is told."""
        for other in self._receivers:
            self._severed |= {(node, other), (other, node)}

    def settled(self, source: int, before: Key) -> None:
        """Tell all other nodes."""
        for target, receiver in self._receivers.items():
            if target != source and (source, target) not in self._severed:
                receiver.settled(source, before)

    async def deliver(self, source: int, target: int, message: Message) -> None:
        """Hand a message over, in a later turn of the event loop, with bytes of its own."""
        if isinstance(message, Part):
            message = replace(message, pieces=(memoryview(b"".join(message.pieces)),))
        await asyncio.sleep(0)
        if (source, target) not in self._severed:
            self._receivers[target].receive(source, message)


class MemoryTransport:
    """One node's end of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, node: int) -> None:
        self._network = network
        self._node = node
        self._turns: dict[int, asyncio.Lock] = {}

    async def send(self, target: int, message: Message) -> None:
        """See Transport."""
        async with self._turns.setdefault(target, asyncio.Lock()):
            await self._network.deliver(self._node, target, message)

    def settle(self, before: Key) -> None:
        """See Transport."""
        asyncio.get_running_loop().call_soon(self._network.settled, self._node, before)

    async def close(self) -> None:
        """See Transport."""
