"""Who is at which attempt of a generation, and up to where it has results; over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gradwire_proto import PROTOCOL, wire
from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.errors import LostError
from gradwire_server.round import Key, Spec
from gradwire_server.testing_links import CHUNK_BYTES, PATIENCE_SECONDS, GrpcLinks
from gradwire_server.transport.base import Left, Part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from gradwire_server.testing_links import Call


@contextlib.asynccontextmanager
async def nodes(attempts: tuple[int, ...], **seconds: float) -> AsyncIterator[GrpcLinks]:
    """Nodes at these attempts; they dial already."""
    links = GrpcLinks(len(attempts), **seconds)  # type: ignore[arg-type]
    await links.serve()
    for node, attempt in enumerate(attempts):
        links.attach(node, attempt)
    for end in links.grpc.values():
        end.dial()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield links
    finally:
        await links.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_no_node_is_greeted_or_answered_before_it_is_ready_and_then_progress_is_told() -> None:
    async def main() -> None:
        async with nodes((2, 2)) as links:
            one, other = links.grpc[0], links.grpc[1]
            one.progress.append(aggregator_pb2.Progress(rank=0, sequence=7))
            one.ready.set()
            with pytest.raises(LostError):
                await one.linked(0.3)
            other.progress.append(aggregator_pb2.Progress(rank=1, sequence=9, chunk=2))
            other.ready.set()
            await one.linked(5)
            await other.linked(5)
            assert one.standing == {1: other.progress}
            assert other.standing == {0: one.progress}

    run(main())


def test_a_node_without_others_waits_for_all_of_its_own_ranks() -> None:
    """What one rank lacks, another of the same node may have."""

    async def main() -> None:
        async with nodes((1,)) as links:
            one = links.grpc[0]
            with pytest.raises(LostError, match=r"waited .* for its own ranks"):
                await one.linked(0.1)
            one.ready.set()
            one.wake()
            await one.linked(5)

    run(main())


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_node_that_hears_of_a_later_attempt_is_told_whoever_dials(ahead: int) -> None:
    async def main() -> None:
        attempts = (3, 1) if ahead == 0 else (1, 3)
        async with nodes(attempts) as links:
            for end in links.grpc.values():
                end.ready.set()
            behind = links.inboxes[1 - ahead]
            await behind.until(lambda: bool(behind.attempts))
            await asyncio.sleep(0.5)
            assert behind.attempts == [3]
            assert links.inboxes[ahead].attempts == []
            assert [inbox.losses for inbox in links.inboxes] == [[], []]
            # It takes the job up again, and all is well.
            await links.grpc[1 - ahead].abandon()
            links.attach(1 - ahead, 3)
            links.grpc[1 - ahead].dial()
            links.grpc[1 - ahead].ready.set()
            for end in links.grpc.values():
                await end.linked(5)
            await links.ends[0].send(1, Left(0, 3))
            await links.inboxes[1].until(lambda: bool(links.inboxes[1].messages))

    run(main())


@pytest.mark.parametrize(
    "fields", [{}, {"again": True, "key": b"?"}, {"pulse": True}, {"lane": 1}]
)
def test_a_later_attempt_counts_whatever_else_a_hello_says(fields: dict[str, Any]) -> None:
    async def main() -> None:
        links = GrpcLinks(2)
        await links.serve()
        links.attach(1, 4)
        try:
            async with links.call(1) as call:
                await call.write(hello(attempt=5, **fields))
                await links.inboxes[1].until(lambda: bool(links.inboxes[1].attempts))
                assert links.inboxes[1].attempts == [5]
            async with links.call(1) as call:
                await call.write(hello(attempt=3, **fields))
                assert (await answer(call)).attempt == 4
        finally:
            await links.close()

    run(main())


@pytest.mark.parametrize("resume", [0.0, 9.0])
def test_who_is_told_that_the_job_is_over_there_asks_no_more(resume: float) -> None:
    async def main() -> None:
        links = GrpcLinks(2, resume_seconds=resume)
        await links.serve()
        links.attach(0)
        links.refusals[1] = LostError("rank 1 is lost")
        links.grpc[0].dial()
        await links.inboxes[0].until(lambda: bool(links.inboxes[0].losses))
        assert links.inboxes[0].losses == [(1, "rank 1 is lost")]
        await links.close()

    run(main())


def test_a_link_is_lost_where_the_job_is_over_when_it_is_to_be_opened_again() -> None:
    async def main() -> None:
        links = GrpcLinks(2, relayed=True, resume_seconds=9)
        await links.open()
        links.refusals[1] = LostError("rank 1 is lost")
        links.relays[1].reset()
        await links.inboxes[0].until(lambda: bool(links.inboxes[0].losses))
        assert links.inboxes[0].losses == [(1, "rank 1 is lost")]
        await links.close()

    run(main())


@pytest.mark.parametrize("node", [0, 1])
def test_an_attempt_is_abandoned_at_once_without_a_word_and_no_loss_is_told(node: int) -> None:
    async def main() -> None:
        links = GrpcLinks(2, relayed=True, resume_seconds=9)
        await links.open()
        links.relays[1].hold()
        payload = memoryview(bytes(4 * CHUNK_BYTES))
        waiting = [
            asyncio.create_task(links.ends[node].send(1 - node, share(number, payload)))
            for number in range(20)
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            await links.grpc[node].abandon()
            await asyncio.gather(*waiting)
        links.relays[1].heal()
        assert links.inboxes[node].losses == []
        await links.close()

    run(main())


# -- settled


def share(sequence: int, payload: memoryview) -> Part:
    spec = Spec(pb.OP_SUM, pb.DTYPE_INT8, 1000, 0)
    return Part(Key(sequence, 0), peer_pb2.SCHEDULE_RING, 0, 0, 1.0, spec, (payload,))


def test_what_is_settled_is_told_though_nothing_else_is_to_be_said() -> None:
    async def main() -> None:
        async with nodes((0, 0)) as links:
            await links.grpc[0].linked(5)
            for node in (0, 1):
                for key in (Key(1, 0), Key(4, 2), Key(3, 0)):
                    links.ends[node].settle(key)
            for node, inbox in enumerate(links.inboxes):
                await inbox.until(lambda inbox=inbox: bool(inbox.settlements))  # type: ignore[misc]
                assert inbox.settlements[-1] == (1 - node, Key(4, 2))
                assert inbox.messages == []

    run(main())


def test_a_share_tells_what_is_settled_when_it_is_written() -> None:
    async def main() -> None:
        async with nodes((0, 0)) as links:
            await links.grpc[0].linked(5)
            for sequence in range(1, 30):
                links.ends[0].settle(Key(sequence, 1))
                await links.ends[0].send(1, share(sequence, memoryview(b"x" * 100)))
            inbox = links.inboxes[1]
            await inbox.until(lambda: len(inbox.messages) == 29)
            assert inbox.settlements[-1] == (0, Key(29, 1))
            said = [key.sequence for _, key in inbox.settlements]
            assert said == sorted(set(said))

    run(main())


def test_what_was_settled_before_a_link_came_or_while_it_was_down_is_told_then() -> None:
    async def main() -> None:
        links = GrpcLinks(2, relayed=True, resume_seconds=9)
        await links.serve()
        for node in (0, 1):
            links.attach(node)
            links.ends[node].settle(Key(3, 1))
        links.grpc[0].dial()
        for inbox in links.inboxes:
            await inbox.until(lambda inbox=inbox: bool(inbox.settlements))  # type: ignore[misc]
        links.relays[1].hold()
        links.relays[1].reset()
        for node in (0, 1):
            links.ends[node].settle(Key(5, 0))
        links.relays[1].heal()
        for inbox in links.inboxes:
            await inbox.until(lambda inbox=inbox: len(inbox.settlements) > 1)  # type: ignore[misc]
            assert [key for _, key in inbox.settlements] == [Key(3, 1), Key(5, 0)]
        await links.close()

    run(main())


# -- hellos of somebody else's


def hello(**fields: Any) -> bytes:  # noqa: ANN401 - as protobuf has it
    said = peer_pb2.Hello(
        protocol=PROTOCOL, generation="g", node=0, chunk_bytes=CHUNK_BYTES, **fields
    )
    return peer_pb2.Frame(hello=said).SerializeToString()


async def answer(call: Call) -> peer_pb2.Hello:
    async with asyncio.timeout(PATIENCE_SECONDS):
        first = await call.read()
    assert isinstance(first, bytes)
    return peer_pb2.Frame.FromString(first).hello


def test_who_lost_the_first_answer_may_ask_for_it_until_it_has_said_something() -> None:
    async def main() -> None:
        links = GrpcLinks(2, resume_seconds=5)
        await links.serve()
        links.attach(1)
        try:
            async with links.call(1) as lost, links.call(1) as call, links.call(1) as third:
                await lost.write(hello())
                key = (await answer(lost)).key
                await links.ends[1].send(0, Left(1, 8))
                lost.cancel()
                await call.write(hello())
                assert (await answer(call)).key == key
                again = await call.read()
                assert isinstance(again, bytes)
                assert peer_pb2.Frame.FromString(again).left.sequences == 8
                assert links.inboxes[1].losses == []
                await call.write(frame_of_left())
                await links.inboxes[1].until(lambda: bool(links.inboxes[1].messages))
                await third.write(hello())
                assert "node 0 is linked already" in await refusal(third)
        finally:
            await links.close()

    run(main())


def frame_of_left() -> bytes:
    frame = peer_pb2.Frame(index=1, left=peer_pb2.Left(rank=0, sequences=2))
    return wire.seal(frame, memoryview(b""))


async def refusal(call: Call) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value.details() or ""
