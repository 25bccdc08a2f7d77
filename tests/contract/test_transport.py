"""What every transport promises, on each of them: see Transport in transport/base.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
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

KINDS: dict[str, Callable[[int], MemoryLinks | GrpcLinks]] = {
    "memory": MemoryLinks,
    "grpc": GrpcLinks,
    "two connections": partial(GrpcLinks, connections=2),
    "many connections": partial(GrpcLinks, connections=7),
    "connections that delay": partial(GrpcLinks, connections=4, seed=7),
}
MANY_PIECES = 8 * CHUNK_BYTES
"""As much as a chunk may be while it is summed."""
SOME_PIECES = 4 * CHUNK_BYTES

every_transport = pytest.mark.parametrize("kind", KINDS)


@contextlib.asynccontextmanager
async def linked(kind: str, nodes: int) -> AsyncIterator[MemoryLinks | GrpcLinks]:
    links = KINDS[kind](nodes)
    await links.open()
    try:
        yield links
    finally:
        await links.close()


def part(number: int, payload: bytes | bytearray = b"gradient", step: int = 5) -> Part:
    return Part(
        Key(number, 2), peer_pb2.SCHEDULE_TREE, step, 6, 2.5, SPEC, (memoryview(payload),)
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


def steps(inbox: Inbox, source: int, sequence: int) -> list[int]:
    return [
        message.step
        for sender, message in inbox.messages
        if sender == source and isinstance(message, Part) and message.key.sequence == sequence
    ]


@every_transport
@pytest.mark.parametrize("sizes", [(0, 8000, 100), (0, 3 << 20, 9, 600_000, 70_000)], ids=len)
def test_parts_of_a_round_come_in_the_order_in_which_a_node_sent_them(
    kind: str, sizes: tuple[int, ...]
) -> None:
    async def main() -> None:
        async with linked(kind, 3) as links:
            async with asyncio.TaskGroup() as sends:
                for step in range(20):
                    payload = bytes(sizes[step % len(sizes)])
                    for source, target in ((0, 1), (2, 1), (1, 0)):
                        for round_ in range(2):
                            message = part(round_, payload, step)
                            sends.create_task(links.ends[source].send(target, message))
            for target, source in ((1, 0), (1, 2), (0, 1)):
                inbox = links.inboxes[target]
                await inbox.until(holds(inbox, 80 if target == 1 else 40))
                for round_ in range(2):
                    assert steps(inbox, source, round_) == list(range(20))

    asyncio.run(main())


@every_transport
def test_shares_of_many_pieces_come_whole_to_the_last_bit(kind: str) -> None:
    draw = random.Random(3)  # noqa: S311 - content, not a secret
    sizes = (MANY_PIECES, MANY_PIECES - 8, (4 << 20) + 1, (2 << 20) + 8, 1 << 20, 3)
    sent = {number: draw.randbytes(size) for number, size in enumerate(sizes)}

    async def main() -> None:
        async with linked(kind, 2) as links:
            async with asyncio.TaskGroup() as sends:
                for number, payload in sent.items():
                    for source in range(2):
                        message = part(number, payload)
                        sends.create_task(links.ends[source].send(1 - source, message))
            for inbox in links.inboxes:
                await inbox.until(holds(inbox, len(sizes)))
                arrived = [message for _, message in inbox.messages]
                assert {
                    message.key.sequence: b"".join(message.pieces)
                    for message in arrived
                    if isinstance(message, Part)
                } == sent

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
            for _, message in inbox.messages:
                assert isinstance(message, Part)
                assert b"".join(message.pieces) == bytes([message.key.sequence]) * size

    asyncio.run(main())


@every_transport
@pytest.mark.parametrize("size", [CHUNK_BYTES, SOME_PIECES])
@pytest.mark.parametrize("turns", range(4))
def test_a_cancelled_send_arrives_whole_or_not_at_all_and_the_link_goes_on(
    kind: str, turns: int, size: int
) -> None:
    async def main() -> None:
        async with linked(kind, 2) as links:
            buffers = [bytearray(bytes([number]) * size) for number in range(8)]
            sends = [
                asyncio.create_task(links.ends[0].send(1, part(number // 4, buffer, number)))
                for number, buffer in enumerate(buffers)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for send, buffer in zip(sends[::2], buffers[::2], strict=True):
                send.cancel()
                await asyncio.wait([send])
                buffer[:] = b"\xff" * size
            await asyncio.gather(*sends[1::2])
            inbox = links.inboxes[1]
            for round_ in range(2):
                await links.ends[0].send(1, part(round_, bytes([99]), 99))
                await inbox.until(lambda r=round_: 99 in steps(inbox, 0, r))  # type: ignore[misc]
                arrived = steps(inbox, 0, round_)
                assert arrived == sorted(arrived)
                assert {4 * round_ + 1, 4 * round_ + 3} <= set(arrived)
            for _, message in inbox.messages:
                assert isinstance(message, Part)
                assert set(b"".join(message.pieces)) == {message.step}

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
