"""Faults at every step of a round, in jobs of two to five nodes: right bits, or a clear word.

A step is a message between two nodes. Each job is run undisturbed first, which counts its
steps, then again and again with a fault at one of them: at a few, drawn from the seed, or with
GRADWIRE_TEST_EXPLORE=N at every one, for each of N seeds.
"""

from __future__ import annotations

import asyncio
import os
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

from exploring.course import ELEMENTS, Course, reference, tensor
from exploring.engines import Engines, Failure, Outcome, Subject, engines
from exploring.reviving import reviving
from gradwire_server.reduce.choose import SCHEDULES
from gradwire_server.testing import run
from gradwire_server.testing_job import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

EXPLORED = int(os.environ.get("GRADWIRE_TEST_EXPLORE", "0"))
SEEDS = range(max(1, EXPLORED))
FEW = 4
SHAPES = [(1, 2), (2, 1, 1), (1, 1, 1, 2), (1, 2, 1, 1, 1)]
ROUNDS = 3
PATIENCE_SECONDS = TIMEOUT_SECONDS + 5
"""Of virtual time: who has heard nothing by then hangs."""


COURSES = [
    Course(shape, schedule, seed)
    for seed in SEEDS
    for shape in SHAPES
    for schedule in SCHEDULES
]
courses = pytest.mark.parametrize(
    "course", COURSES, ids=lambda each: f"{len(each.shape)} nodes, {each.schedule}, {each.seed}"
)


async def explore(subject: Subject, course: Course) -> dict[tuple[int, int], Outcome]:
    """All rounds on all ranks, which come in any order and at times of their own."""
    draw = random.Random(course.seed)  # noqa: S311 - an order, not a secret

    async def sit(rank: int, pauses: list[float]) -> list[Outcome]:
        outcomes = []
        for sequence, pause in enumerate(pauses):
            await asyncio.sleep(pause)
            mine = tensor(course, rank, sequence)
            subject.bring(rank, sequence, mine)
            outcomes.append(await subject.outcome(rank, sequence, mine))
        return outcomes

    times = [[draw.random() * 0.02 for _ in range(ROUNDS)] for _ in range(course.world)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        ranks = await asyncio.gather(*(sit(*each) for each in enumerate(times)))
    return {
        (rank, sequence): outcome
        for rank, outcomes in enumerate(ranks)
        for sequence, outcome in enumerate(outcomes)
    }


def right(course: Course, outcomes: dict[tuple[int, int], Outcome]) -> set[tuple[int, int]]:
    """Which of them are failures; all others have the bits that they should have."""
    failed = set()
    for (rank, sequence), outcome in outcomes.items():
        if isinstance(outcome, torch.Tensor):
            assert outcome.numpy().tobytes() == reference(course, sequence).numpy().tobytes()
        else:
            failed.add((rank, sequence))
    return failed


def steps_of(course: Course) -> list[int]:
    """At which messages there is to be a fault; at the first of all in any case."""
    steps = range(1, undisturbed_steps(course) + 1)
    if EXPLORED:
        return list(steps)
    draw = random.Random(course.seed)  # noqa: S311 - a choice, not a secret
    return [1, *sorted(draw.sample(steps[1:], FEW))]


def undisturbed_steps(course: Course) -> int:
    """Messages between nodes, of all rounds together."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    async def main() -> None:
        async with engines(course) as subject:
            subject.step = count
            assert right(course, await explore(subject, course)) == set()

    run(main())
    return steps


def at(step: int, act: Callable[[], None]) -> Callable[[], None]:
    """Something to call at every step, which does this at one of them."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()

    return count


# -- faults


@courses
def test_delays_and_overtaking_change_no_bit(course: Course) -> None:
    assert undisturbed_steps(course) > 0


@courses
def test_a_node_that_is_lost_at_any_step_ends_the_job_with_its_name_and_no_wrong_bit(
    course: Course,
) -> None:
    for step in steps_of(course):
        node = step % len(course.shape)
        outcomes = run(disturbed(course, step, lambda subject, n=node: subject.kill(n)))  # type: ignore[misc]
        failed = right(course, outcomes)
        for rank, sequence in failed:
            failure = outcomes[rank, sequence]
            assert isinstance(failure, Failure)
            assert (failure.scope, failure.kind) == (Failure.SCOPE_JOB, Failure.KIND_LOST)
            who = f"node {node} " if rank not in course.places[node] else "node "
            assert f"the daemon of {who}" in failure.reason
        over_for_good(failed)
        assert step > 1 or len(failed) == course.world * ROUNDS, "nothing can be complete yet"


@pytest.mark.case("R01")
@courses
def test_a_rank_that_dies_or_a_daemon_that_stops_at_any_step_is_named_to_all(
    course: Course,
) -> None:
    for step in steps_of(course):
        rank, node = step % course.world, step % len(course.shape)
        acts: list[tuple[Callable[[Engines], None], str]] = [
            (lambda subject, r=rank: subject.lose(r), f"rank {rank} is lost"),  # type: ignore[misc]
            (lambda subject, n=node: subject.stop(n), f"node {node} is stopping"),  # type: ignore[misc]
        ]
        act, words = acts[step // 2 % 2]
        outcomes = run(disturbed(course, step, act))
        failed = right(course, outcomes)
        for each in failed:
            failure = outcomes[each]
            assert isinstance(failure, Failure)
            assert words in failure.reason
        over_for_good(failed)


def over_for_good(failed: set[tuple[int, int]]) -> None:
    """Once a rank was told that the job is over, it gets no result any more."""
    for rank in {rank for rank, _ in failed}:
        sequences = sorted(sequence for each, sequence in failed if each == rank)
        assert all(later == one + 1 for one, later in pairwise(sequences))
        assert sequences[-1] == ROUNDS - 1


async def disturbed(
    course: Course, step: int, act: Callable[[Engines], None]
) -> dict[tuple[int, int], Outcome]:
    async with engines(course) as subject:
        subject.step = at(step, lambda: act(subject))
        return await explore(subject, course)


@courses
def test_what_comes_again_when_its_round_is_over_counts_for_nothing(course: Course) -> None:
    async def main() -> None:
        async with engines(course) as subject:
            assert right(course, await explore(subject, course)) == set()
            await asyncio.sleep(1)
            subject.replay()
            assert [engine.headway.open_rounds for engine in subject.made.engines] == [0] * len(
                course.shape
            )
            last = torch.ones(ELEMENTS)
            for rank in range(course.world):
                subject.bring(rank, ROUNDS, last)
            async with asyncio.timeout(PATIENCE_SECONDS):
                for rank in range(course.world):
                    outcome = await subject.outcome(rank, ROUNDS, last)
                    assert isinstance(outcome, torch.Tensor)
                    assert torch.equal(outcome, last * course.world)

    run(main())


@courses
def test_a_mismatch_at_any_rank_fails_one_round_and_no_other(course: Course) -> None:
    for odd in range(course.world):
        outcomes = run(mismatched(course, odd))
        assert right(course, outcomes) == {(rank, 1) for rank in range(course.world)}
        for rank in range(course.world):
            failure = outcomes[rank, 1]
            assert isinstance(failure, Failure)
            assert failure.kind == Failure.KIND_MISMATCH
            assert f"{ELEMENTS + 1} x float32" in failure.reason


async def mismatched(course: Course, odd: int) -> dict[tuple[int, int], Outcome]:
    async with engines(course) as subject:
        subject.instead[odd, 1] = torch.ones(ELEMENTS + 1)
        return await explore(subject, course)


@pytest.mark.case("R08")
@courses
def test_daemons_killed_at_any_step_come_back_and_no_bit_is_lost(course: Course) -> None:
    """One; and another, or the same, a few steps later, which may be while it comes back."""
    for step in steps_of(course):
        outcomes = run(revived(course, step))
        assert right(course, outcomes) == set()


async def revived(course: Course, step: int) -> dict[tuple[int, int], Outcome]:
    nodes = len(course.shape)
    later = step + 1 + step % 7

    async with reviving(course) as subject:
        first = at(step, lambda: subject.kill(step % nodes))
        second = at(later, lambda: subject.kill((step // 2) % nodes))

        def both() -> None:
            first()
            second()

        subject.step = both
        return await explore(subject, course)
