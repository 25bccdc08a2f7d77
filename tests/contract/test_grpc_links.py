"""What gRPC links promise beyond the contract: whoever knows the port may try to be a node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gradwire_proto import PROTOCOL
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
from gradwire_server.transport.link import Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def hello(**fields: int | str) -> bytes:
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
        {"node": 1},
        {"node": 2},
    ],
    ids=["protocol", "generation", "chunk_bytes", "this node itself", "no node of the job"],
)
def test_a_stranger_is_refused_and_told_what_was_expected(fields: dict[str, int | str]) -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await call.write(hello(**fields))
            text = await refusal(call)
            assert "node 1 expected a hello with protocol, generation and chunk_bytes" in text
            assert str((PROTOCOL, "g", CHUNK_BYTES)) in text
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
    "frame",
    [
        pytest.param(b"\xff\xff\xff", id="no protobuf"),
        pytest.param(b"\x12\x05ab", id="cut short"),
        pytest.param(b"\x7a\xff\xff\xff\x7f", id="a payload longer than the message"),
        pytest.param(b"", id="empty"),
        pytest.param(hello(), id="hello again"),
        pytest.param(peer_pb2.Frame(payload=b"of nothing").SerializeToString(), id="no kind"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_lost(frame: bytes) -> None:
    async def main() -> None:
        async with one_node() as (links, call):
            await call.write(hello())
            await call.read()
            await call.write(frame)
            inbox = links.inboxes[1]
            await inbox.until(lambda: bool(inbox.losses))
            ((node, reason),) = inbox.losses
            assert node == 0
            assert reason.startswith("it broke the rules: ")
            assert inbox.messages == []

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
        group = Group(picture("127.0.0.1:2", "127.0.0.1:1"), node)
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
