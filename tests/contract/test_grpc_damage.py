"""Links over gRPC on loopback, and somebody on the way who changes bytes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.round import Key, Spec
from gradwire_server.testing_links import CHUNK_BYTES, GrpcLinks, Inbox
from gradwire_server.transport import journal
from gradwire_server.transport import lane as lanes
from gradwire_server.transport.base import Left, Part
from gradwire_server.transport.journal import MOST_DAMAGED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SPEC = Spec(pb.OP_SUM, pb.DTYPE_INT8, 1000, 0)
LARGE = bytes(range(256)) * (CHUNK_BYTES * 3 // 256)
SIZES = [100, len(LARGE), 0, 70_000]


class Damage:
    """Changes a bit of some frames: of which, `chosen` says by their number, from 1."""

    def __init__(self, chosen: Callable[[int], bool], at: float = 0.5) -> None:
        self.seen = 0
        self.done = 0
        self._chosen = chosen
        self._at = at

    def __call__(self, node: int, data: bytes) -> bytes:
        self.seen += 1
        if not self._chosen(self.seen):
            return data
        self.done += 1
        changed = bytearray(data)
        changed[int(self._at * (len(data) - 1))] ^= 0x10
        return bytes(changed)


def part(sequence: int, size: int) -> Part:
    payload = memoryview(LARGE)[:size]
    return Part(
        Key(sequence, 3), peer_pb2.SCHEDULE_RING, 0, 0, 1.0, SPEC, (payload,)
    )  # fmt: skip


@contextlib.asynccontextmanager
async def two_nodes(damage: Damage, connections: int = 1) -> AsyncIterator[GrpcLinks]:
    links = GrpcLinks(2, connections, damage=damage)
    try:
        await links.open()
        yield links
    finally:
        await links.close()


def has_all(inbox: Inbox) -> bool:
    """All that is sent to it in an exchange, or nothing more will come."""
    return len(inbox.messages) > len(SIZES) or bool(inbox.losses)


async def exchange(links: GrpcLinks) -> None:
    """Shares, notes and what is short, each way; all arrive as they were."""
    for sequence, size in enumerate(SIZES):
        for node in (0, 1):
            await links.ends[node].send(1 - node, part(sequence, size))
    for node in (0, 1):
        for rank in range(2):
            note = aggregator_pb2.Note(source=node, target=rank)
            links.grpc[node].post(1 - node, note, memoryview(b"letter"))
        await links.ends[node].send(1 - node, Left(node, 7))
    for node, inbox in enumerate(links.inboxes):
        await inbox.until(partial(has_all, inbox))
        assert inbox.losses == []
        parts = [each for _, each in inbox.messages if isinstance(each, Part)]
        assert sorted(each.key.sequence for each in parts) == [0, 1, 2, 3]
        for each in parts:
            assert b"".join(each.pieces) == LARGE[: SIZES[each.key.sequence]]
        assert [note.target for _, note, _ in inbox.notes] == [0, 1]
        assert inbox.messages[-1] == (1 - node, Left(1 - node, 7))


def count(links: GrpcLinks, name: str) -> float:
    """A metric of damage, of both nodes together."""
    values = [
        links.metrics[node].registry.get_sample_value(name, {"peer": peer})
        for node, (peer,) in enumerate(reversed(links.addresses))
    ]
    return sum(value or 0 for value in values)


@pytest.mark.case("M29")
@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("at", [0, 0.5, 1], ids=["start", "middle", "end"])
def test_whichever_frame_is_damaged_all_arrives_as_it_was_sent(
    connections: int, at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that tallies are among the frames.
    monkeypatch.setattr(lanes, "TELL_SECONDS", 0.001)

    async def main(number: int) -> bool:
        damage = Damage(lambda seen: seen == number, at)
        async with two_nodes(damage, connections) as links:
            await exchange(links)
            assert count(links, "gradwire_frames_damaged_total") <= damage.done <= 1
        return damage.done > 0

    number = 1
    while asyncio.run(main(number)):
        number += 1
    assert number > 2 * (len(SIZES) + 3)


@pytest.mark.case("M29")
@pytest.mark.parametrize("kept", [journal.KEPT_BYTES, 1], ids=["as usual", "one"])
@pytest.mark.parametrize("seed", range(4))
def test_many_damaged_frames_are_asked_for_again_however_few_may_be_kept(
    seed: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEPT_BYTES", kept)
    monkeypatch.setattr(lanes, "TELL_SECONDS", 0.001)
    draw = random.Random(seed)  # noqa: S311 - it decides what is damaged

    async def main() -> None:
        damage = Damage(lambda seen: seen == 1 or draw.random() < 0.2, draw.random())
        async with two_nodes(damage, connections=2) as links:
            await exchange(links)
            damaged = count(links, "gradwire_frames_damaged_total")
            assert damage.done >= damaged > 0
            assert count(links, "gradwire_frames_resent_total") > 0

    asyncio.run(main())


@pytest.mark.case("M29")
@pytest.mark.parametrize("at", [0, 0.5, 1])
def test_a_peer_from_whom_all_comes_damaged_is_lost(at: float) -> None:
    async def main() -> None:
        async with two_nodes(Damage(lambda _: True, at)) as links:
            await links.ends[0].send(1, part(7, 1000))
            reasons = []
            for node, inbox in enumerate(links.inboxes):
                await inbox.until(lambda inbox=inbox: bool(inbox.losses))  # type: ignore[misc]
                ((peer, reason),) = inbox.losses
                assert peer == 1 - node
                reasons.append(reason)
            # Who has had enough first hangs up on the other.
            start = f"data was damaged on the way from it, {MOST_DAMAGED} frames in a row: "
            (found,) = [reason for reason in reasons if reason.startswith(start)]
            assert found.endswith("came with another checksum than it left with")

    asyncio.run(main())


def test_the_log_names_the_peer_and_what_came_damaged_but_not_all_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with two_nodes(Damage(lambda seen: seen <= 3)) as links:
            for sequence in range(3):
                await links.ends[0].send(1, part(sequence, 1000))
            inbox = links.inboxes[1]
            await inbox.until(lambda: len(inbox.messages) == 3)

    caplog.set_level(logging.WARNING, "gradwire_server.transport.watch")
    asyncio.run(main())
    (line,) = [line for line in caplog.messages if line.startswith("from node 0")]
    assert line.startswith("from node 0: a share of what seems round 0, chunk 3, 1")
    assert line.endswith("checksum than it left with; it is asked for again")


@pytest.mark.parametrize("node", [0, 1])
def test_who_closes_stays_until_its_goodbye_was_read(node: int) -> None:
    damage = Damage(lambda seen: seen == 2)

    async def main() -> None:
        async with two_nodes(damage) as links:
            await links.ends[node].send(1 - node, Left(0, 3))
            await links.ends[node].close()
            inbox = links.inboxes[1 - node]
            await inbox.until(lambda: not links.grpc[1 - node].status()[node].connected)
            assert (len(inbox.messages), inbox.losses) == (1, [])
            assert count(links, "gradwire_frames_damaged_total") == 1

    asyncio.run(main())
    assert damage.done == 1
