"""The pulse of a link, as the other side meets it over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gradwire_proto import PROTOCOL, wire
from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.round import Key, Spec
from gradwire_server.testing_links import CHUNK_BYTES, PATIENCE_SECONDS, GrpcLinks
from gradwire_server.transport.base import Part
from gradwire_server.transport.hearing import MOST_PINGS
from gradwire_server.transport.stripes import BULK_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gradwire_server.testing_links import Call, Inbox


def hello(**fields: Any) -> bytes:  # noqa: ANN401 - as protobuf has it
    said = peer_pb2.Hello(
        protocol=PROTOCOL, generation="g", node=0, chunk_bytes=CHUNK_BYTES, **fields
    )
    return peer_pb2.Frame(hello=said).SerializeToString()


async def read(call: Call) -> peer_pb2.Frame:
    data = await call.read()
    assert isinstance(data, bytes)
    return peer_pb2.Frame.FromString(data)


@contextlib.asynccontextmanager
async def one_node() -> AsyncIterator[tuple[GrpcLinks, bytes]]:
    """Node 1, linked to us on lane 0; with the link's key."""
    links = GrpcLinks(2)
    await links.serve()
    links.attach(1)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), links.call(1) as lane:
            await lane.write(hello())
            yield links, (await read(lane)).hello.key
    finally:
        await links.close()


RING = peer_pb2.SCHEDULE_RING
PING = wire.seal(peer_pb2.Frame(ping=peer_pb2.Ping()), memoryview(b""))


@pytest.mark.case("R12")
def test_it_answers_as_often_as_it_is_asked_and_asks_itself_but_is_never_counted() -> None:
    async def main() -> None:
        async with one_node() as (links, key), links.call(1) as pulse:
            await pulse.write(hello(pulse=True, key=key))
            assert (await read(pulse)).hello.pulse
            assert (await read(pulse)).HasField("ping"), "at once, and then at every beat"
            for _ in range(2 * MOST_PINGS):
                await pulse.write(PING)
                while not (frame := await read(pulse)).HasField("pong"):
                    assert frame.HasField("ping")
            before = links.grpc[1].status()[0]
            assert before.silent_seconds < 1
            assert (before.connections, before.bytes_received) == (1, 0)
            assert links.inboxes[1].losses == []

    asyncio.run(main())


def test_an_answer_says_what_clocks_are_compared_by() -> None:
    async def main() -> None:
        async with one_node() as (links, key), links.call(1) as pulse:
            await pulse.write(hello(pulse=True, key=key))
            begun = time.monotonic_ns()
            ping = peer_pb2.Frame(ping=peer_pb2.Ping(nanoseconds=2**63 + 5))
            await pulse.write(wire.seal(ping, memoryview(b"")))
            while not (frame := await read(pulse)).HasField("pong"):
                pass
            said = frame.pong
            assert said.asked_nanoseconds == 2**63 + 5
            heard, answered = said.heard_nanoseconds, said.answered_nanoseconds
            assert begun <= heard <= answered <= time.monotonic_ns()

    asyncio.run(main())


def shares(inbox: Inbox) -> list[Part]:
    return [message for _, message in inbox.messages if isinstance(message, Part)]


def has_more(inbox: Inbox, count: int) -> bool:
    return len(shares(inbox)) > count


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_share_bears_when_it_was_sent_and_when_the_last_of_it_came(pieces: int) -> None:
    spec = Spec(pb.OP_SUM, pb.DTYPE_INT8, 1, 0)
    payload = memoryview(bytes(pieces * BULK_BYTES))

    async def main() -> None:
        links = GrpcLinks(2)
        await links.open()
        try:
            there, part = links.inboxes[1], None
            while part is None or part.left_at is None:
                before, sent = time.monotonic(), len(shares(there))
                message = Part(Key(sent, 0), RING, 0, 0, 1.0, spec, (payload,))
                await links.ends[0].send(1, message)
                await there.until(partial(has_more, there, sent))
                part = shares(there)[-1]
                assert before <= part.sent_ns / 1e9 <= part.came_at <= time.monotonic()
            # One machine, one clock.
            assert abs(part.left_at - part.sent_ns / 1e9) < 0.1
        finally:
            await links.close()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"\xff" * 9, PING[:-1] + b"\x01", hello()])
def test_what_comes_damaged_on_it_is_passed_over(said: bytes) -> None:
    async def main() -> None:
        async with one_node() as (links, key), links.call(1) as pulse:
            await pulse.write(hello(pulse=True, key=key))
            await read(pulse)
            await pulse.write(said)
            await pulse.write(PING)
            while not (await read(pulse)).HasField("pong"):
                pass
            assert links.inboxes[1].losses == []

    asyncio.run(main())


def test_only_who_knows_the_links_key_has_one_and_a_new_one_replaces_the_old() -> None:
    async def main() -> None:
        async with (
            one_node() as (links, key),
            links.call(1) as stranger,
            links.call(1) as old,
            links.call(1) as new,
        ):
            await stranger.write(hello(pulse=True, key=b"guessed"))
            with pytest.raises(grpc.aio.AioRpcError, match="has no link that the pulse is of"):
                await stranger.read()
            await old.write(hello(pulse=True, key=key))
            await read(old)
            await new.write(hello(pulse=True, key=key))
            await read(new)
            while await old.read() is not grpc.aio.EOF:
                pass
            await new.write(PING)
            while not (await read(new)).HasField("pong"):
                pass

    asyncio.run(main())
