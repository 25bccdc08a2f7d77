"""Links whose connections break, fall silent and come back; over gRPC and a relay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING

import pytest

from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.round import Key, Spec
from gradwire_server.testing_links import CHUNK_BYTES, PATIENCE_SECONDS, GrpcLinks, Inbox
from gradwire_server.transport import journal
from gradwire_server.transport.base import Left, Part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SPEC = Spec(pb.OP_SUM, pb.DTYPE_INT8, 1000, 0)
PATTERN = random.Random(5).randbytes(4 * CHUNK_BYTES)  # noqa: S311 - content
SIZES = (100, 3 * CHUNK_BYTES, 0, 70_000, CHUNK_BYTES)


def part(sequence: int) -> Part:
    payload = memoryview(PATTERN)[sequence : sequence + SIZES[sequence % len(SIZES)]]
    return Part(
        Key(sequence, 3), peer_pb2.SCHEDULE_RING, 0, 0, 1.0, SPEC, (payload,)
    )  # fmt: skip


@contextlib.asynccontextmanager
async def two_nodes(
    connections: int = 1, resume: float = 20.0, timeout: float = 60.0
) -> AsyncIterator[GrpcLinks]:
    """Node 0 dials node 1, by way of links.relays[1]."""
    links = GrpcLinks(
        2, connections, relayed=True, resume_seconds=resume, timeout_seconds=timeout
    )
    try:
        await links.open()
        yield links
    finally:
        await links.close()


async def until(there: Callable[[], bool]) -> None:
    """Return once this is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not there():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.005)


async def talk(links: GrpcLinks, node: int, sequences: range) -> None:
    """Shares one after another, and with each a note and something short."""
    for sequence in sequences:
        await links.ends[node].send(1 - node, part(sequence))
        await links.ends[node].send(1 - node, Left(node, sequence))
        note = aggregator_pb2.Note(source=node, target=sequence)
        links.grpc[node].post(1 - node, note, memoryview(b"letter"))


async def has_all(inbox: Inbox, count: int) -> None:
    """What talk sent came: once, in order, as it was."""
    await inbox.until(lambda: len(inbox.messages) >= 2 * count and len(inbox.notes) >= count)
    assert inbox.losses == []
    lefts = [each.sequences for _, each in inbox.messages if isinstance(each, Left)]
    parts = [each for _, each in inbox.messages if isinstance(each, Part)]
    assert lefts == list(range(count))
    assert [note.target for _, note, _ in inbox.notes] == list(range(count))
    assert sorted(each.key.sequence for each in parts) == list(range(count))
    for each in parts:
        sent = part(each.key.sequence).pieces[0]
        assert b"".join(each.pieces) == bytes(sent)


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("kept", [journal.KEPT_BYTES, 1], ids=["as usual", "one"])
@pytest.mark.parametrize("seed", range(3))
def test_connections_that_are_reset_again_and_again_lose_and_double_nothing(
    connections: int, kept: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEPT_BYTES", kept)
    draw = random.Random(seed)  # noqa: S311 - when to cut
    count = 25

    async def main() -> int:
        async with two_nodes(connections) as links:
            relay, resets, due = links.relays[1], 0, draw.randrange(4 << 20)

            def cut(passed: int) -> None:
                nonlocal resets, due
                if passed > due and resets < 10 and relay.connections:
                    due = passed + draw.randrange(6 << 20)
                    resets += 1
                    relay.reset(draw.choice([None, draw.randrange(relay.connections)]))

            relay.watch = cut
            async with asyncio.TaskGroup() as talks:
                for node in (0, 1):
                    talks.create_task(talk(links, node, range(count)))
            for inbox in links.inboxes:
                await has_all(inbox, count)
            return resets

    assert asyncio.run(main()) > 3


@pytest.mark.case("R02")
@pytest.mark.parametrize("lossless", [True, False], ids=["a pause", "a partition"])
@pytest.mark.parametrize("connections", [1, 3])
def test_after_silence_all_goes_on_and_the_log_tells_of_it_once(
    connections: int, lossless: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        # Suspected after two seconds.
        async with two_nodes(connections, timeout=12) as links:
            await talk(links, 0, range(5))
            relay = links.relays[1]
            relay.hold()
            later = asyncio.create_task(talk(links, 0, range(5, 10)))
            back = asyncio.create_task(talk(links, 1, range(10)))
            await until(lambda: all(said(caplog, node) for node in (0, 1)))
            assert links.grpc[1].status()[0].silent_seconds > 1
            await asyncio.sleep(0.5)
            relay.heal(lossless=lossless)
            await asyncio.gather(later, back)
            for inbox in links.inboxes:
                await has_all(inbox, 10)
            await until(lambda: all(len(said(caplog, node)) > 1 for node in (0, 1)))

    caplog.set_level(logging.INFO, "gradwire_server.transport.guard")
    asyncio.run(main())
    for node in (0, 1):
        first, then, *more = said(caplog, node)
        assert first.startswith(f"nothing from node {node} at 127.0.0.1:")
        assert first.endswith("s; it is waited for until 20 s are over")
        assert then.startswith(f"node {node} at 127.0.0.1:")
        assert " is back after " in then
        assert not [each for each in more if each.startswith("nothing")]


def said(caplog: pytest.LogCaptureFixture, node: int) -> list[str]:
    """What guards have said of a node."""
    said_ = (each.getMessage() for each in caplog.records if each.name.endswith(".guard"))
    return [each for each in said_ if f" node {node} " in f" {each}"]


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_can_not_be_reached_again_is_lost_after_the_time_it_is_waited_for(
    node: int,
) -> None:
    async def main() -> None:
        async with two_nodes(resume=1.0) as links:
            await talk(links, node, range(3))
            await links.relays[1].close()
            sending = asyncio.create_task(talk(links, node, range(3, 6)))
            for inbox in links.inboxes:
                await inbox.until(lambda inbox=inbox: bool(inbox.losses))  # type: ignore[misc]
            async with asyncio.timeout(PATIENCE_SECONDS):
                await sending
            ((_, reason),) = links.inboxes[0].losses
            assert reason.startswith("unreachable for 1")
            assert reason.endswith(" s (connection refused)")
            assert links.inboxes[1].losses[0][1].startswith("unreachable for 1")

    asyncio.run(main())


@pytest.mark.case("R02")
@pytest.mark.parametrize("resume", [0.0, 0.5])
def test_a_node_of_which_nothing_comes_is_lost(resume: float) -> None:
    async def main() -> None:
        # Dead after a second.
        async with two_nodes(resume=resume, timeout=6) as links:
            await asyncio.sleep(1.5)
            assert [inbox.losses for inbox in links.inboxes] == [[], []], "idle is not dead"
            links.relays[1].hold()
            for node, inbox in enumerate(links.inboxes):
                await inbox.until(lambda inbox=inbox: bool(inbox.losses))  # type: ignore[misc]
                ((peer, reason),) = inbox.losses
                assert (peer, reason.split(".")[0][:12]) == (1 - node, "silent for 1")

    asyncio.run(main())


def test_a_send_that_waits_for_a_connection_can_be_cancelled_and_its_payload_reused() -> None:
    async def main() -> None:
        async with two_nodes(connections=2) as links:
            await links.ends[0].send(1, part(1))
            await until(lambda: links.grpc[0].status()[1].connections == 2)
            relay = links.relays[1]
            relay.hold()
            relay.reset()
            buffer = bytearray(PATTERN[: 3 * CHUNK_BYTES])
            spoiled = Part(
                Key(7, 0), peer_pb2.SCHEDULE_RING, 0, 0, 1.0, SPEC, (memoryview(buffer),)
            )
            await until(lambda: not links.grpc[0].status()[1].connections)
            sending = asyncio.create_task(links.ends[0].send(1, spoiled))
            await asyncio.sleep(0.05)
            assert not sending.done()
            sending.cancel()
            async with asyncio.timeout(1):
                await asyncio.wait([sending])
            buffer[:] = bytes(len(buffer))
            relay.heal()
            await links.ends[0].send(1, part(2))
            inbox = links.inboxes[1]
            await inbox.until(lambda: len(inbox.messages) == 2)
            sequences = [
                each.key.sequence for _, each in inbox.messages if isinstance(each, Part)
            ]
            assert sequences == [1, 2]

    asyncio.run(main())


@pytest.mark.parametrize("node", [0, 1])
def test_who_closes_while_connections_break_is_still_heard_to_the_end(node: int) -> None:
    async def main() -> None:
        async with two_nodes(connections=2) as links:
            await talk(links, node, range(4))
            links.relays[1].reset()
            await talk(links, node, range(4, 6))
            await links.ends[node].close()
            await has_all(links.inboxes[1 - node], 6)
            await links.ends[1 - node].close()
        assert [inbox.losses for inbox in links.inboxes] == [[], []]

    asyncio.run(main())


@pytest.mark.parametrize("node", [0, 1])
def test_who_has_said_goodbye_may_be_silent(node: int) -> None:
    async def main() -> None:
        # Dead after a second.
        async with two_nodes(resume=0.5, timeout=6) as links:
            await talk(links, node, range(2))
            await links.ends[node].close()
            await asyncio.sleep(1.6)
            await has_all(links.inboxes[1 - node], 2)
            assert [inbox.losses for inbox in links.inboxes] == [[], []]

    asyncio.run(main())


@pytest.mark.parametrize("resume", [0.0, 9.0])
def test_that_the_pulse_breaks_is_no_fault_and_it_comes_again(resume: float) -> None:
    async def main() -> None:
        # Dead after a second.
        async with two_nodes(resume=resume, timeout=6) as links:
            relay = links.relays[1]
            await until(lambda: relay.connections == 2)
            opened = relay.opened
            for count in range(1, 4):
                relay.reset(1)
                await until(lambda count=count: relay.opened == opened + count)  # type: ignore[misc]
                await until(lambda: relay.connections == 2)
            await asyncio.sleep(1.2)
            await talk(links, 0, range(2))
            await has_all(links.inboxes[1], 2)
            assert links.inboxes[0].losses == []
            assert relay.opened == opened + 3

    asyncio.run(main())
