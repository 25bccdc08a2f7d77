"""What every transport promises, on each of them: see Transport in transport/base.py."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.round import Key, Spec
from gradwire_server.testing_links import (
    CHUNK_BYTES,
    PATIENCE_SECONDS,
    GrpcLinks,
    Inbox,
    MemoryLinks,
)
from gradwire_server.transport.base import Abort, Left, Message, Part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SPEC = Spec(pb.OP_MEAN, pb.DTYPE_FLOAT32, 300, 77, "10x30")
FAILURE = aggregator_pb2.Failure(kind=aggregator_pb2.Failure.KIND_TIMEOUT, reason="late")

KINDS: dict[str, type[MemoryLinks | GrpcLinks]] = {"memory": MemoryLinks, "grpc": GrpcLinks}
every_transport = pytest.mark.parametrize("kind", KINDS)


@contextlib.asynccontextmanager
async def linked(kind: str, nodes: int) -> AsyncIterator[MemoryLinks | GrpcLinks]:
    links = KINDS[kind](nodes)
    await links.open()
    try:
        yield links
    finally:
        await links.close()


def part(number: int, payload: bytes | bytearray = b"gradient") -> Part:
    return Part(
        Key(number, 2), peer_pb2.SCHEDULE_TREE, 5, 6, 2.5, SPEC, (memoryview(payload),)
    )  # fmt: skip


def holds(inbox: Inbox, count: int) -> Callable[[], bool]:
    return lambda: len(inbox.messages) == count


def lost(inbox: Inbox, node: int) -> Callable[[], bool]:
    return lambda: node in [each for each, _ in inbox.losses]


def numbers(inbox: Inbox, source: int) -> list[int]:
    return [
        message.key.sequence
        for sender, message in inbox.messages
        if sender == source and isinstance(message, Part)
    ]


@every_transport
def test_every_kind_of_message_arrives_as_it_was_sent(kind: str) -> None:
    job_failure = aggregator_pb2.Failure(scope=aggregator_pb2.Failure.SCOPE_JOB, reason="over")
    messages: list[Message] = [
        part(2**40),
        part(1, b""),
        Abort(9, FAILURE),
        Abort(0, FAILURE),
        Left(4, 0),
        Abort(None, job_failure),
    ]

    async def main() -> None:
        async with linked(kind, 2) as links:
            for message in messages:
                await links.ends[0].send(1, message)
                await links.ends[1].send(0, message)
            for here, there in ((0, 1), (1, 0)):
                inbox = links.inboxes[here]
                await inbox.until(holds(inbox, len(messages)))
                assert inbox.messages == [(there, message) for message in messages]
                first = inbox.messages[0][1]
                assert isinstance(first, Part)
                assert first.spec.shapes == SPEC.shapes

    asyncio.run(main())


@every_transport
def test_messages_of_one_node_come_in_the_order_in_which_it_sent_them(kind: str) -> None:
    async def main() -> None:
        async with linked(kind, 3) as links:
            async with asyncio.TaskGroup() as sends:
                for number in range(100):
                    payload = bytes(number * 500 % 9001)
                    for source, target in ((0, 1), (2, 1), (1, 0)):
                        sends.create_task(
                            links.ends[source].send(target, part(number, payload))
                        )
            for target, source in ((1, 0), (1, 2), (0, 1)):
                inbox = links.inboxes[target]
                await inbox.until(holds(inbox, 200 if target == 1 else 100))
                assert numbers(inbox, source) == list(range(100))

    asyncio.run(main())


@every_transport
@pytest.mark.parametrize("size", [1, 1000, CHUNK_BYTES])
def test_a_payload_may_be_reused_once_it_is_sent(kind: str, size: int) -> None:
    async def main() -> None:
        async with linked(kind, 2) as links:
            buffer = bytearray(size)
            for number in range(10):
                buffer[:] = bytes([number]) * size
                await links.ends[0].send(1, part(number, buffer))
            inbox = links.inboxes[1]
            await inbox.until(lambda: len(inbox.messages) == 10)
            for number, (_, message) in enumerate(inbox.messages):
                assert isinstance(message, Part)
                assert b"".join(message.pieces) == bytes([number]) * size

    asyncio.run(main())


@every_transport
@pytest.mark.parametrize("turns", range(4))
def test_a_cancelled_send_is_sent_whole_or_not_at_all_and_the_link_goes_on(
    kind: str, turns: int
) -> None:
    async def main() -> None:
        async with linked(kind, 2) as links:
            buffers = [bytearray(bytes([number]) * CHUNK_BYTES) for number in range(8)]
            sends = [
                asyncio.create_task(links.ends[0].send(1, part(number, buffer)))
                for number, buffer in enumerate(buffers)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for send, buffer in zip(sends[::2], buffers[::2], strict=True):
                send.cancel()
                await asyncio.wait([send])
                buffer[:] = b"\xff" * CHUNK_BYTES
            await asyncio.gather(*sends[1::2])
            await links.ends[0].send(1, part(99))
            inbox = links.inboxes[1]
            await inbox.until(lambda: numbers(inbox, 0)[-1:] == [99])
            arrived = numbers(inbox, 0)
            assert arrived == sorted(arrived)
            assert {1, 3, 5, 7} <= set(arrived)
            for _, message in inbox.messages[:-1]:
                assert isinstance(message, Part)
                assert b"".join(message.pieces) == bytes([message.key.sequence]) * CHUNK_BYTES

    asyncio.run(main())


@every_transport
@pytest.mark.parametrize("first", [0, 1])
def test_a_node_that_closes_is_not_told_of_as_lost(kind: str, first: int) -> None:
    async def main() -> None:
        async with linked(kind, 2) as links:
            await links.ends[first].send(1 - first, part(7))
            await links.ends[first].close()
            inbox = links.inboxes[1 - first]
            await inbox.until(lambda: bool(inbox.messages))
            await links.ends[1 - first].close()
        assert numbers(inbox, first) == [7], "what was accepted is sent before the goodbye"
        assert [each.losses for each in links.inboxes] == [[], []]

    asyncio.run(main())


@every_transport
def test_a_link_that_breaks_is_told_once_with_a_reason_on_both_sides(kind: str) -> None:
    async def main() -> None:
        async with linked(kind, 3) as links:
            await links.kill(2)
            for here, there in ((0, 2), (1, 2), (2, 0), (2, 1)):
                inbox = links.inboxes[here]
                await inbox.until(lost(inbox, there))
            async with asyncio.timeout(PATIENCE_SECONDS):
                await links.ends[0].send(2, part(1))  # goes nowhere, and does not hang
                await links.ends[0].send(1, part(2))
            await links.inboxes[1].until(lambda: numbers(links.inboxes[1], 0) == [2])
        losses = [sorted(inbox.losses) for inbox in links.inboxes]
        assert [[node for node, _ in each] for each in losses] == [[2], [2], [0, 1]]
        assert all(reason for each in losses for _, reason in each)
        assert numbers(links.inboxes[2], 0) == []

    asyncio.run(main())
