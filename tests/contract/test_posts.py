"""What links promise of the ranks' letters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_server.errors import ProtocolError
from gradwire_server.testing_links import PATIENCE_SECONDS, GrpcLinks, Inbox
from gradwire_server.transport.base import Left
from gradwire_server.transport.stripes import BULK_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MANY = 200


class Strict(Inbox):
    """Takes no letter at all."""

    def post(self, source: int, note: aggregator_pb2.Note, payload: memoryview) -> None:
        raise ProtocolError(f"expected no note, got {payload.nbytes} bytes from node {source}")


def numbered(number: int) -> aggregator_pb2.Note:
    return aggregator_pb2.Note(source=0, target=1, number=number)


@contextlib.asynccontextmanager
async def linked(connections: int = 1, *, seed: int | None = None) -> AsyncIterator[GrpcLinks]:
    links = GrpcLinks(2, connections, seed=seed)
    await links.open()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield links
    finally:
        await links.close()


@pytest.mark.parametrize("sender", [0, 1])
def test_notes_come_in_order_and_before_word_that_their_rank_has_left(sender: int) -> None:
    async def main() -> None:
        async with linked(3, seed=5) as links:
            inbox = links.inboxes[1 - sender]
            for number in range(MANY):
                payload = memoryview(bytes([number]) * (number % 3))
                links.grpc[sender].post(1 - sender, numbered(number), payload)
            await links.grpc[sender].send(1 - sender, Left(sender, 0))
            await inbox.until(lambda: bool(inbox.messages))
            expected = [(sender, numbered(n), bytes([n]) * (n % 3)) for n in range(MANY)]
            assert inbox.notes == expected

    asyncio.run(main())


@pytest.mark.parametrize("sender", [0, 1])
def test_large_letters_bring_further_lanes_to_spare_the_shares(sender: int) -> None:
    async def main() -> None:
        async with linked(3) as links:
            page = memoryview(bytes(BULK_BYTES))
            links.grpc[sender].post(1 - sender, numbered(1), page)
            while links.grpc[0].status()[1].connections < 3:  # noqa: ASYNC110 - nobody says
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_node_that_breaks_the_rules_of_letters_is_lost() -> None:
    async def main() -> None:
        links = GrpcLinks(2)
        links.inboxes[1] = strict = Strict()
        await links.open()
        links.grpc[0].post(1, numbered(1), memoryview(b"abc"))
        await strict.until(lambda: bool(strict.losses))
        text = "it broke the rules: expected no note, got 3 bytes from node 0"
        assert strict.losses == [(0, text)]
        await links.close()

    asyncio.run(main())


def test_a_note_to_a_node_whose_link_is_down_goes_nowhere() -> None:
    async def main() -> None:
        async with linked() as links:
            await links.kill(1)
            await links.inboxes[0].until(lambda: bool(links.inboxes[0].losses))
            links.grpc[0].post(1, numbered(1), memoryview(b"abc"))

    asyncio.run(main())


def test_a_note_is_plain_protobuf_to_anybody() -> None:
    frame = peer_pb2.Frame(note=numbered(3))
    data = wire.join(frame, memoryview(b"abc"))
    assert peer_pb2.Frame.FromString(data) == peer_pb2.Frame(note=numbered(3), payload=b"abc")
