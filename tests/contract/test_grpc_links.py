"""What gRPC links promise beyond the contract: whoever knows the port may try to be a node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from crc32c import crc32c

from gradwire_proto import PROTOCOL, wire
from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.errors import LostError
from gradwire_server.group import Group
from gradwire_server.round import Key, Spec
from gradwire_server.testing_links import (
    CHUNK_BYTES,
    PATIENCE_SECONDS,
    Call,
    GrpcLinks,
    Inbox,
    metrics,
    picture,
)
from gradwire_server.transport.base import Left, Part
from gradwire_server.transport.grpc import GrpcTransport
from gradwire_server.transport.hearing import MOST_PINGS
from gradwire_server.transport.watch import Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEAD_HOST = "127.0.0.9"
"""Where nobody listens, though some nodes say that they do."""


def hello(**fields: int | str | bytes) -> bytes:
    good: dict[str, Any] = {
        "protocol": PROTOCOL, "generation": "g", "node": 0, "chunk_bytes": CHUNK_BYTES,
    }  # fmt: skip
    return peer_pb2.Frame(hello=peer_pb2.Hello(**good | fields)).SerializeToString()


@contextlib.asynccontextmanager
async def one_node() -> AsyncIterator[tuple[GrpcLinks, Call]]:
    """Node 1 of two, and a call to it from somebody who may say to be node 0."""
    links = GrpcLinks(2)
    await links.serve()
    links.attach(1)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS), links.call(1) as call:
            yield links, call
    finally:
        await links.close()


async def greet(call: Call) -> bytes:
    """Say to be node 0, on its first stream; the link's key."""
    await call.write(hello())
    first = await call.read()
    assert isinstance(first, bytes)
    return peer_pb2.Frame.FromString(first).hello.key


def frame(
    payload: bytes = b"",
    index: int = 1,
    **kind: Any,  # noqa: ANN401 - a message or its fields
) -> bytes:
    return wire.seal(peer_pb2.Frame(index=index, **kind), memoryview(payload))


SHARE = frame(
    b"y" * 1000,
    share=peer_pb2.Share(
        sequence=7,
        chunk=3,
        spec=Spec(pb.OP_SUM, pb.DTYPE_INT8, 1000, 0).write(),
        number=1,
        size=1000,
    ),
)


def sealed(data: bytes) -> bytes:
    """Whatever it is, with the checksum that it ought to have."""
    return bytes([14 << 3 | 5]) + crc32c(data).to_bytes(4, "little") + data


async def told(call: Call, heard: int) -> None:
    """It says how far it has heard, and ends the stream."""
    last = await call.read()
    assert isinstance(last, bytes)
    assert peer_pb2.Frame.FromString(last).heard == heard
    assert await call.read() is grpc.aio.EOF


async def refusal(call: Call) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.details() or ""


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol": PROTOCOL + 1},
        {"generation": "old"},
        {"chunk_bytes": 4096},
        {"job": "another"},
        {"node": 1},
        {"node": 2},
    ],
    ids=["protocol", "generation", "chunk_bytes", "job", "this node", "no node of the job"],
)
def test_a_stranger_is_refused_and_told_what_was_expected(fields: dict[str, int | str]) -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await call.write(hello(**fields))
            text = await refusal(call)
            assert (
                "node 1 expected a hello with protocol, generation, chunk_bytes and job" in text
            )
            assert str((PROTOCOL, "g", CHUNK_BYTES, "")) in text
            assert (links.inboxes[1].losses, links.grpc[1].status()) == ([], {0: Status()})

    asyncio.run(main())


def test_a_node_that_is_linked_is_not_replaced_by_another() -> None:
    async def main() -> None:
        async with one_node() as (links, call), links.call(1) as second:
            await call.write(hello())
            await call.read()
            await second.write(hello())
            assert await refusal(second) == "node 0 is linked already"
            await links.ends[1].send(0, Left(0, 3))
            frame = await call.read()
            assert isinstance(frame, bytes)
            assert peer_pb2.Frame.FromString(frame).left.sequences == 3

    asyncio.run(main())


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(sealed(b"\xff\xff\xff"), id="no protobuf"),
        pytest.param(sealed(b"\x12\x05ab"), id="cut short"),
        pytest.param(sealed(b"\x7a\xff\xff\xff\x7f"), id="a payload longer than the message"),
        pytest.param(sealed(b""), id="empty"),
        pytest.param(sealed(hello()), id="hello again"),
        pytest.param(frame(b"of nothing"), id="no kind"),
        pytest.param(frame(b"x", share={"number": 1, "size": 1 << 40}), id="endless share"),
        pytest.param(frame(b"x", share={"size": 1}), id="share without a number"),
        pytest.param(frame(b"x", piece={"number": 1, "offset": 3}), id="piece off the grid"),
        pytest.param(frame(b"x", piece={"number": 1, "offset": 1 << 40}), id="piece far out"),
        pytest.param(frame(b"x", piece={"number": 1 << 40, "offset": 64}), id="no such share"),
        pytest.param(frame(skip={"number": 1 << 40}), id="calls off what is not begun"),
        pytest.param(frame(index=0, ping={}), id="does not count"),
        pytest.param(frame(index=2, ping={}), id="leaves one out"),
        pytest.param(frame(ping={}, heard=1), id="heard what was not said"),
        pytest.param(frame(index=7, tally={}), id="tallies more than came"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_lost(said: bytes) -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await call.write(hello())
            await call.read()
            await call.write(said)
            inbox = links.inboxes[1]
            await inbox.until(lambda: bool(inbox.losses))
            ((node, reason),) = inbox.losses
            assert node == 0
            assert reason.startswith("it broke the rules: ")
            assert inbox.messages == []

    asyncio.run(main())


def unsealed(index: int) -> bytes:
    return peer_pb2.Frame(index=index, left={"rank": 1}).SerializeToString()


def changed(at: int) -> bytes:
    data = bytearray(SHARE)
    data[at] ^= 0x10
    return bytes(data)


@pytest.mark.case("M29")
@pytest.mark.parametrize(
    "damaged",
    [*(changed(at) for at in (0, 1, 4, 5, 6, 9, 12, -1, -500)), unsealed(1), SHARE[:-1], b""],
)
def test_a_frame_with_one_bit_changed_is_never_taken_for_what_it_says_but_asked_for(
    damaged: bytes,
) -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await greet(call)
            await call.write(damaged)
            await call.write(frame(index=2, left={"rank": 1, "sequences": 5}))
            answer = await call.read()
            assert isinstance(answer, bytes)
            assert wire.is_whole(answer)
            asked = peer_pb2.Frame.FromString(answer)
            assert (asked.index, asked.heard, asked.tally.again) == (0, 0, True)
            inbox = links.inboxes[1]
            assert inbox.messages == []
            await call.write(SHARE)
            await call.write(frame(index=2, left={"rank": 1, "sequences": 5}))
            await inbox.until(lambda: len(inbox.messages) == 2)
            (_, share), (_, left) = inbox.messages
            assert isinstance(share, Part)
            assert b"".join(share.pieces) == b"y" * 1000
            assert left == Left(1, 5)
            assert inbox.losses == []

    asyncio.run(main())


def test_what_a_peer_asks_for_is_sent_again_as_it_was() -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await greet(call)
            for sequences in range(3):
                await links.ends[1].send(0, Left(1, sequences))
            said = [await call.read() for _ in range(3)]
            await call.write(frame(index=0, heard=1, tally={"again": True}))
            answer, *again = [await call.read() for _ in range(3)]
            assert isinstance(answer, bytes)
            tally = peer_pb2.Frame.FromString(answer)
            assert (tally.index, tally.heard, tally.tally.again) == (1, 0, False)
            assert again == said[1:]
            registry = links.metrics[1].registry
            (peer,) = links.addresses[0]
            name = "gradwire_frames_resent_total"
            assert registry.get_sample_value(name, {"peer": peer}) == 2

    asyncio.run(main())


def test_a_peer_that_asks_without_end_is_lost() -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await greet(call)
            for index in range(1, MOST_PINGS + 2):
                await call.write(frame(index=index, ping={}))
            inbox = links.inboxes[1]
            await inbox.until(lambda: bool(inbox.losses))
            assert "it broke the rules: it asked for more than" in inbox.losses[0][1]

    asyncio.run(main())


# -- several connections


def test_a_further_lane_is_refused_to_who_does_not_know_the_links_key() -> None:
    async def main() -> None:
        async with one_node() as (links, call), links.call(1) as early, links.call(1) as late:
            await early.write(hello(lane=1))
            assert await refusal(early) == "node 0 has no link that lane 1 is of"
            await greet(call)
            await late.write(hello(lane=1, key=b"guessed"))
            assert await refusal(late) == "node 0 has no link that lane 1 is of"
            assert links.grpc[1].status()[0].connections == 1
            assert links.inboxes[1].losses == []

    asyncio.run(main())


@pytest.mark.parametrize("lane", [1, 64, 1 << 31])
def test_a_lane_is_there_once_and_lanes_are_not_without_number(lane: int) -> None:
    async def main() -> None:
        async with one_node() as (links, call), links.call(1) as one, links.call(1) as more:
            key = await greet(call)
            await one.write(hello(lane=1, key=key))
            await one.read()
            await more.write(hello(lane=lane, key=key))
            assert await refusal(more) == f"node 0 can't have another lane {lane}"
            assert links.grpc[1].status()[0].connections == 2

    asyncio.run(main())


@pytest.mark.parametrize("which", [0, 1])
def test_a_link_is_lost_with_any_of_its_connections_and_all_end(which: int) -> None:
    async def main() -> None:
        async with one_node() as (links, call), links.call(1) as further:
            await further.write(hello(lane=1, key=await greet(call)))
            await further.read()
            lanes = [call, further]
            lanes[which].cancel()
            inbox = links.inboxes[1]
            await inbox.until(lambda: bool(inbox.losses))
            assert await lanes[1 - which].read() is grpc.aio.EOF
            assert len(inbox.losses) == 1
            assert links.grpc[1].status()[0].connections == 0

    asyncio.run(main())


def test_a_goodbye_on_one_lane_does_not_end_what_comes_on_another() -> None:
    async def main() -> None:
        async with one_node() as (links, call), links.call(1) as further:
            await further.write(hello(lane=1, key=await greet(call)))
            await further.read()
            await further.write(frame(b"x" * 8, piece={"number": 1, "offset": 64}))
            await call.write(frame(goodbye={}))
            await told(call, 1)
            spec = Spec(pb.OP_SUM, pb.DTYPE_INT8, 72, 0).write()
            share = peer_pb2.Share(spec=spec, number=1, size=72)
            await further.write(frame(b"y" * 64, 2, share=share))
            await further.write(frame(index=3, goodbye={}))
            await told(further, 3)
            inbox = links.inboxes[1]
            ((_, message),) = inbox.messages
            assert isinstance(message, Part)
            assert b"".join(message.pieces) == b"y" * 64 + b"x" * 8
            assert inbox.losses == []

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancels", "hangs up"])
def test_a_peer_that_ends_its_stream_without_a_goodbye_is_lost(how: str) -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await call.write(hello())
            await call.read()
            if how == "cancels":
                call.cancel()
            else:
                await call.done_writing()
            inbox = links.inboxes[1]
            await inbox.until(lambda: bool(inbox.losses))
            ((node, reason),) = inbox.losses
            assert (node, reason.split("(")[0].strip()) == (
                0,
                "its process or its connection ended without a goodbye",
            )

    asyncio.run(main())


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (0, "node 1 at 127.0.0.1:1 on host1 (ranks 1): "),
        (1, "node 0 at 127.0.0.1:2 on host0 (ranks 0): nothing has come from it"),
    ],
)
def test_a_node_that_does_not_answer_is_named_with_what_is_in_the_way(
    node: int, words: str
) -> None:
    async def main() -> None:
        group = Group(picture(("127.0.0.1:2",), ("127.0.0.1:1",)), node)
        end = GrpcTransport(group, CHUNK_BYTES, Inbox(), metrics())
        end.dial()
        with pytest.raises(LostError) as caught:
            await end.linked(0.2)
        await end.close()
        assert f"node {node} waited 0.2 s for {words}" in str(caught.value)

    asyncio.run(main())


def test_bytes_are_counted_by_link_and_by_direction() -> None:
    async def main() -> None:
        key, spec = Key(1, 0), Spec(pb.OP_SUM, pb.DTYPE_INT8, 1000, 0)
        ring, payload = peer_pb2.SCHEDULE_RING, memoryview(bytes(1000))
        share = Part(key, ring, 0, 0, 1.0, spec, (payload,))
        links = GrpcLinks(2)
        await links.open()
        await links.ends[0].send(1, share)
        await links.inboxes[1].until(lambda: bool(links.inboxes[1].messages))
        here, there = links.grpc[0].status()[1], links.grpc[1].status()[0]
        assert here.connected
        assert 1000 < here.bytes_sent == there.bytes_received < 1100
        await links.close()

    asyncio.run(main())
