"""What fails one collective, what fails the job, and what the ranks are told of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.engine import CLOSE_SECONDS
from gradwire_server.errors import LostError, StoppingError
from gradwire_server.execution import Arrived
from gradwire_server.round import Contribution, Extent, Key, Round, Spec
from gradwire_server.testing import run, virtual_seconds
from gradwire_server.testing_job import CHUNK_BYTES, SLOTS, MemoryJob, job
from gradwire_server.transport.base import Message, Part

if TYPE_CHECKING:
    from gradwire_server.kernels import ChunkSum
    from gradwire_server.local import Place
    from gradwire_server.stopwatch import Stopwatch

Failure = aggregator_pb2.Failure
RING = peer_pb2.SCHEDULE_RING
MEAN_OF_5 = Spec(pb.OP_MEAN, pb.DTYPE_FLOAT32, 5, 0)
MEAN_OF_10 = replace(MEAN_OF_5, elements=10)
NO_DTYPE = Spec(pb.OP_MEAN, 99, 5, 0)  # type: ignore[arg-type]
INTEGERS = replace(MEAN_OF_5, dtype=pb.DTYPE_INT64)
NO_OP = replace(MEAN_OF_5, op=pb.OP_UNSPECIFIED)
SHORT = memoryview(b"short")
FIVE = memoryview(bytes(20))


async def works(made: MemoryJob, sequence: int) -> None:
    """The next collective gives a result on every rank."""
    made.bring_all(sequence, [torch.full((5,), 3.0)] * made.world)
    for result in await made.results(sequence, torch.ones(5)):
        assert result.tolist() == [3.0] * 5


@pytest.mark.case("M31")
@pytest.mark.parametrize(
    ("other", "op", "words"),
    [
        (torch.ones(5).half(), "mean", "mean of 5 x float16"),
        (torch.ones(5), "sum", "sum of 5 x float32"),
        (torch.ones(6), "mean", "mean of 6 x float32"),
        (torch.ones(500), "mean", "mean of 500 x float32"),
        (torch.ones(0), "mean", "mean of 0 x float32"),
    ],
    ids=["dtype", "op", "one element more", "many chunks", "empty"],
)
@pytest.mark.parametrize("odd", [0, 1, 3])
def test_what_does_not_match_fails_one_collective_on_all_ranks_and_names_both_sides(
    other: torch.Tensor, op: str, words: str, odd: int
) -> None:
    async def main() -> None:
        async with job(2, 2) as made:
            for rank in range(4):
                if rank == odd:
                    made.bring(rank, 0, other, op)
                else:
                    made.bring(rank, 0, torch.ones(5))
            for text in await made.failures(0, range(4)):
                assert text.startswith("round 0: ")
                assert "mean of 5 x float32" in text
                assert words in text
                ranks = ", ".join(map(str, made.places[odd // 2]))
                assert f"rank {odd}" in text or f"(ranks {ranks}) brought" in text
            assert made.heard.failures[odd, 0].kind == Failure.KIND_MISMATCH
            await works(made, 1)

    run(main())


def test_a_rank_that_comes_late_to_a_failed_collective_hears_why() -> None:
    async def main() -> None:
        async with job(2, 1) as made:
            made.bring(0, 0, torch.ones(5))
            made.bring(2, 0, torch.ones(6))
            (text,) = await made.failures(0, [0, 2])
            made.bring(1, 0, torch.ones(5))
            assert await made.failures(0, [1]) == {text}

    run(main())


def test_a_rank_that_does_not_come_in_time_is_named_to_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with job(2, 1) as made:
            begun = asyncio.get_running_loop().time()
            made.bring(0, 0, torch.ones(5))
            made.bring(2, 0, torch.ones(5))
            for text in await made.failures(0, [0, 2]):
                assert "round 0 has waited 6" in text
                assert "for rank 1 (pid 101 on host0); the timeout is 60 s" in text
            assert 60 <= asyncio.get_running_loop().time() - begun < 63
            assert made.heard.failures[0, 0].kind == Failure.KIND_TIMEOUT
            made.bring(1, 0, torch.ones(5))
            await works(made, 1)

    run(main())
    (warning,) = [each.message for each in caplog.records if "waited 15" in each.message][:1]
    assert "for rank 1 (pid 101 on host0)" in warning


def test_stalled_rounds_are_counted_while_they_stall() -> None:
    async def main() -> None:
        async with job(2) as made:
            made.bring(0, 0, torch.ones(5))
            for seconds, stalled in ((10, 0), (10, 1), (60, 0)):
                await virtual_seconds(seconds)
                assert made.registry.get_sample_value("gradwire_stalled_rounds") == stalled

    run(main())


def test_daemons_with_different_schedules_say_so() -> None:
    async def main() -> None:
        both = [RING, peer_pb2.SCHEDULE_TREE]
        async with job(1, 1, schedules=both) as made:
            made.bring_all(0, [torch.ones(5)] * 2)
            for text in await made.failures(0, [0, 1]):
                for words in ("ring", "tree", "--schedule"):
                    assert words in text

    run(main())


@pytest.mark.parametrize(
    ("step", "share", "size", "words"),
    [
        (0, 1, 19, "19 bytes, expected 20"),
        (0, 1, 0, "0 bytes, expected 20"),
        (1, 1, 20, "ring node 0 expected"),
        (0, 9, 20, "ring node 0 expected"),
    ],
    ids=["short", "empty", "wrong step", "wrong share"],
)
def test_a_peer_that_breaks_the_rules_fails_the_collective_and_not_the_daemon(
    step: int, share: int, size: int, words: str
) -> None:
    async def main() -> None:
        async with job(1, 1, schedules=[RING]) as made:
            made.bring(0, 0, torch.ones(10))
            payload = memoryview(bytes(size))
            bad = Part(Key(0, 0), RING, step, share, 1.0, MEAN_OF_10, (payload,))
            made.engines[0].receive(1, bad)
            for text in await made.failures(0, [0]):
                assert words in text
            assert made.heard.failures[0, 0].scope == Failure.SCOPE_ROUND
            made.bring(1, 0, torch.ones(10))
            await works(made, 1)

    run(main())


# -- what fails the job


def job_failure(made: MemoryJob, text: str, kind: Failure.Kind) -> None:
    """Every rank was told this, and is told again whatever it brings."""
    for rank in range(made.world):
        failure = made.heard.failures[rank, 0]
        assert (failure.scope, failure.kind) == (Failure.SCOPE_JOB, kind)
        assert text in failure.reason
        made.bring(rank, 7, torch.ones(5))
        assert made.heard.failures[rank, 7] == failure


def test_a_rank_that_is_lost_ends_the_job_on_every_node() -> None:
    async def main() -> None:
        async with job(2, 1, 1) as made:
            made.bring(0, 0, torch.ones(5))
            made.bring(2, 0, torch.ones(5))
            made.engines[0].fail(LostError("rank 1 (pid 101 on host0) is lost: it died"))
            await made.failures(0, range(4))
            job_failure(made, "rank 1 (pid 101 on host0) is lost", Failure.KIND_LOST)

    run(main())


def test_a_node_that_is_lost_ends_the_job_on_every_node_and_is_named_with_its_ranks() -> None:
    async def main() -> None:
        async with job(1, 2, 1) as made:
            made.bring_all(0, [torch.ones(5)] * 3)
            made.network.sever(1)
            await made.failures(0, range(4))
            job_failure(made, "lost", Failure.KIND_LOST)
            text = "the daemon of node 1 at 10.0.0.1:1 on host1 (ranks 1, 2) is lost: severed"
            assert {made.heard.failures[rank, 0].reason for rank in (0, 3)} == {text}

    run(main())


def test_a_rank_that_leaves_in_good_order_lets_what_it_took_part_in_complete() -> None:
    async def main() -> None:
        async with job(2, 1) as made:
            made.bring_all(0, [torch.ones(5)] * 3)
            made.engines[0].leave(1)
            await virtual_seconds(1)
            assert not made.heard.failures
            assert (0, Key(0, 0)) in made.heard.results
            assert (2, Key(0, 0)) in made.heard.results
            made.bring(2, 1, torch.ones(5))
            expected = "round 1 can't complete: rank 1 left the job after 1 collectives"
            assert await made.failures(0, [0, 2]) == {expected}

    run(main())


def test_all_ranks_may_leave_one_after_the_other() -> None:
    async def main() -> None:
        async with job(2, 1) as made:
            made.bring_all(0, [torch.ones(5)] * 3)
            await made.results(0, torch.ones(5))
            for rank in (2, 0, 1):
                made.engine_of(rank).leave(rank)
            await virtual_seconds(1)
            assert not made.heard.failures

    run(main())


@pytest.mark.parametrize(
    ("key", "contribution", "words"),
    [
        (Key(1, 0), Contribution(MEAN_OF_5, 1.0, FIVE), "expected to bring chunk"),
        (Key(0, 1), Contribution(MEAN_OF_5, 1.0, FIVE), "brought chunk 1 of 1"),
        (Key(0, 0), Contribution(MEAN_OF_5, -1.0, FIVE), "brought weight -1.0"),
        (Key(0, 0), Contribution(MEAN_OF_5, float("nan"), FIVE), "brought weight nan"),
        (Key(0, 0), Contribution(INTEGERS, 0.5, FIVE), "weight 0.5, expected 1 for integers"),
        (Key(0, 0), Contribution(NO_DTYPE, 1.0, FIVE), "op or dtype that is not known"),
        (Key(0, 0), Contribution(NO_OP, 1.0, FIVE), "op or dtype that is not known"),
        (Key(0, 0), Contribution(MEAN_OF_5, 1.0), "a chunk of 0 bytes, expected 20"),
        (Key(0, 0), Contribution(MEAN_OF_5, 1.0, SHORT), "5 bytes, expected 20"),
    ],
)  # fmt: skip
def test_a_rank_that_breaks_the_rules_ends_the_job_with_the_reason(
    key: Key, contribution: Contribution, words: str
) -> None:
    async def main() -> None:
        async with job(1, 1) as made:
            made.engines[0].contribute(0, key, contribution)
            await made.failures(0, [0, 1])
            job_failure(made, words, Failure.KIND_PROTOCOL)

    run(main())


def test_a_frame_of_a_round_that_is_over_is_counted_and_dropped() -> None:
    async def main() -> None:
        async with job(1, 1) as made:
            for sequence in (0, 1):
                await works(made, sequence)
            late = Part(Key(0, 0), RING, 0, 0, 1.0, MEAN_OF_5, (memoryview(b""),))
            made.engines[0].receive(1, late)
            stale = made.registry.get_sample_value(
                "gradwire_errors_total", {"kind": "stale_frame"}
            )
            assert stale == 1
            await works(made, 2)

    run(main())


class Stuck:
    """A transport to peers that take nothing."""

    async def send(self, target: int, message: Message) -> None:
        await asyncio.Event().wait()

    def settle(self, before: Key) -> None: ...

    async def close(self) -> None: ...


def test_peers_that_take_nothing_do_not_hold_up_the_end_for_long() -> None:
    async def main() -> None:
        async with job(1, 1) as made:
            made.engines[0].connect(Stuck())
            made.bring(0, 0, torch.ones(5))
            await virtual_seconds(1)
            made.engines[0].fail(StoppingError("the daemon is stopping"))
            began = asyncio.get_running_loop().time()
            await made.engines[0].close()
            assert asyncio.get_running_loop().time() - began <= CLOSE_SECONDS

    run(main())


@pytest.mark.parametrize("how", ["at once", "told to stop"])
def test_nothing_is_left_running_after_an_end_in_mid_round(how: str) -> None:
    """`run` fails where a task is left behind."""

    async def main() -> None:
        async with job(2, 2, 1) as made:
            made.bring_all(0, [torch.ones(10 * CHUNK_BYTES)] * 5)
            await asyncio.sleep(0)
            if how == "told to stop":
                made.engines[1].fail(StoppingError("the daemon of node 1 is stopping"))
                await made.failures(0, range(5))
                job_failure(made, "is stopping", Failure.KIND_STOPPING)

    run(main())


class Borrowed:
    """Local ranks' memory that was not asked for yet."""

    begun = 0
    parts = 1
    released = 0

    async def take(self) -> Place:
        raise AssertionError("the round was given up before")

    def add(self, total: ChunkSum) -> None:
        raise AssertionError(total)

    def publish(self, total: ChunkSum, watch: Stopwatch) -> None:
        raise AssertionError(total)

    def release(self) -> None:
        self.released += 1


def test_a_round_that_is_given_up_before_its_first_step_gives_its_memory_back() -> None:
    async def main() -> None:
        async with job(1, 1) as made:
            local, round_ = Borrowed(), Round[Arrived](Key(0, 0), (0,), 0.0)
            round_.summed("node 0", Contribution(MEAN_OF_5, 1.0))
            made.engines[0].begin(round_, Extent(0, 5, 20, final=True), local)
            made.engines[0].fail(StoppingError("the daemon is stopping"))
        assert local.released == 1

    run(main())


def test_a_rank_with_more_chunks_in_flight_than_slots_ends_the_job() -> None:
    async def main() -> None:
        async with job(1, 2) as made:
            for sequence in range(SLOTS + 1):
                made.bring(0, sequence, torch.ones(5))
            for text in await made.failures(0, range(2)):
                assert f"rank 0 has more than {SLOTS} chunks in flight" in text

    run(main())


class Held:
    """A transport whose sends end only when they may."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.sent = 0

    async def send(self, target: int, message: Message) -> None:
        await self.go.wait()
        self.sent += isinstance(message, Part)

    def settle(self, before: Key) -> None: ...

    async def close(self) -> None: ...


def test_a_job_that_ends_sends_what_others_still_need() -> None:
    """Its ranks have their results, and leave; their peers have not."""

    async def main() -> None:
        async with job(1, 1, schedules=[RING]) as made:
            held = Held()
            made.engines[0].connect(held)
            made.bring_all(0, [torch.ones(10)] * 2)
            first = Part(Key(0, 0), RING, 0, 1, 1.0, MEAN_OF_10, (memoryview(bytes(20)),))
            last = Part(Key(0, 0), RING, 1, 0, 1.0, MEAN_OF_10, (memoryview(bytes(20)),))
            for part in (first, last):
                made.engines[0].receive(1, part)
            await made.heard.until(lambda: (0, Key(0, 0)) in made.heard.results)
            closing = asyncio.create_task(made.engines[0].close())
            await virtual_seconds(0.5)
            held.go.set()
            await closing
            assert held.sent == 2

    run(main())
