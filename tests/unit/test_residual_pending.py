"""What lossy wires have lost, when an attempt ends in the middle of collectives."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gradwire_proto.progress import Muster, Position
from gradwire_proto.residuals import ITEMSIZE
from gradwire_proto.v1 import aggregator_pb2, tensor_pb2
from gradwire_server.feedback import Feedback
from gradwire_server.memory_folder import MemoryFolder
from gradwire_server.round import Coding
from gradwire_server.shared_memory import keeper

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gradwire_server.feedback import Loan

STEP = 100
CHUNKS = 3
IDENTITY = 7
NAME = "gradwire-job"


def made(folder: Path) -> Feedback:
    return Feedback(MemoryFolder(folder), STEP * ITEMSIZE, name=NAME)


def lend(feedback: Feedback, chunk: int, sequence: int, *, revoked: bool = False) -> Loan:
    coding = Coding(tensor_pb2.WIRE_INT8, identity=IDENTITY, feedback=True, revoked=revoked)

    async def run() -> Loan:
        async with asyncio.timeout(5):
            return await feedback.lend(coding, CHUNKS * STEP, chunk, sequence)

    return asyncio.run(run())


def bring(
    feedback: Feedback, sequence: int, value: float, chunks: range = range(CHUNKS)
) -> None:
    """Rounds of a collective that lose `value` everywhere, and have their results."""
    for chunk in chunks:
        loan = lend(feedback, chunk, sequence)
        assert loan.memory is not None
        loan.memory[1].fill_(value)
        feedback.done(sequence, loan)


def owed(feedback: Feedback) -> list[float]:
    """One element of each chunk."""
    (kept,) = feedback.kept()
    return [float(values[0]) for values in feedback.values(kept)]


def reached(number: int, chunk: int = 0, *lapses: int) -> Muster:
    failure = aggregator_pb2.Failure(kind=aggregator_pb2.Failure.KIND_TIMEOUT)
    there = Position(number, chunk)
    return Muster(there, there, 0, dict.fromkeys(lapses, failure))


def restarted(feedback: Feedback, folder: Path) -> Feedback:
    """Another daemon's, after the first was killed: nothing of it was closed."""
    del feedback
    fresh = made(folder)
    fresh.adopt()
    return fresh


def goes_on(feedback: Feedback, _: Path) -> Feedback:
    """The same daemon's, where another one was killed."""
    return feedback


Way = pytest.mark.parametrize("later", [restarted, goes_on])


@Way
def test_what_had_a_result_counts_and_what_had_none_does_not(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    """Of collective 1, others have the result of one chunk: that of the other two is lost."""
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 2.0, range(2))
    assert owed(feedback) == [1.0, 1.0, 1.0]
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(1, 1))
    assert owed(feedback) == [2.0, 1.0, 1.0]


@Way
def test_what_another_node_has_all_of_counts_though_this_one_was_not_done(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 2.0, range(2))
    loan = lend(feedback, 2, 1)
    assert loan.memory is not None
    loan.memory[1].fill_(2.0)
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(2))
    assert owed(feedback) == [2.0, 2.0, 2.0]


@Way
def test_what_counts_already_counts_once(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 2.0)
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(2))
    assert feedback.kept()[0].counts == (2, 2, 2)
    assert owed(feedback) == [2.0, 2.0, 2.0]


@Way
def test_what_counts_here_but_is_reduced_again_is_taken_back(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    """No rank has kept its result: the second try must begin from what the first one found."""
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 2.0)
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(1))
    assert feedback.kept()[0].counts == (1, 1, 1)
    assert owed(feedback) == [1.0, 1.0, 1.0]


@Way
def test_nothing_of_a_collective_that_failed_counts(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 2.0, range(2))
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(2, 0, 1))
    assert owed(feedback) == [1.0, 1.0, 1.0]


@Way
def test_the_rest_of_a_collective_counts_with_its_last_chunk(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    """In later attempts a collective's sequence is the one after its number."""
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 2.0, range(1))
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(1, 1))
    bring(feedback, 2, 3.0, range(1, 2))
    assert owed(feedback) == [2.0, 1.0, 1.0]
    bring(feedback, 2, 3.0, range(2, 3))
    assert owed(feedback) == [2.0, 3.0, 3.0]


@Way
def test_what_fails_after_it_went_on_takes_back_what_the_attempt_before_had_done(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 2.0, range(1))
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(1, 1))
    lend(feedback, 1, 2).release()
    feedback.failed(2)
    assert owed(feedback) == [1.0, 1.0, 1.0]
    assert lend(feedback, 0, 3).count == 1


@Way
def test_a_step_that_was_not_finite_can_be_revoked_afterwards(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    bring(feedback, 1, 1e30)
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(2))
    loan = lend(feedback, 0, 3, revoked=True)
    assert loan.count == 1
    assert loan.memory is not None
    assert loan.memory[0] is not None
    assert float(loan.memory[0][0]) == 1.0


@Way
def test_a_second_attempt_finds_what_the_first_one_began(
    later: Callable[[Feedback, Path], Feedback], tmp_path: Path
) -> None:
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    feedback.resume(reached(1))
    bring(feedback, 2, 2.0, range(2))
    feedback = later(feedback, tmp_path)
    feedback.resume(reached(1, 1))
    assert owed(feedback) == [2.0, 1.0, 1.0]


def test_a_round_that_waited_for_one_of_the_earlier_attempt_is_not_waited_for(
    tmp_path: Path,
) -> None:
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0, range(1))
    feedback.resume(reached(0))
    take = partial(
        feedback.lend, Coding(tensor_pb2.WIRE_INT8, identity=IDENTITY, feedback=True)
    )

    async def run() -> Loan:
        async with asyncio.timeout(5):
            return await take(CHUNKS * STEP, 0, 1)

    assert asyncio.run(run()).count == 0


def test_only_files_of_this_job_are_adopted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Feedback(MemoryFolder(tmp_path), STEP * ITEMSIZE, name="gradwire-another")
    bring(other, 0, 9.0)
    feedback = made(tmp_path)
    bring(feedback, 0, 1.0)
    keeper(tmp_path, NAME).touch()
    broken = tmp_path / f"{NAME}-0000000000000008-abcdef01"
    broken.write_bytes(b"gradwres")
    fresh = restarted(feedback, tmp_path)
    assert owed(fresh) == [1.0, 1.0, 1.0]
    assert caplog.text.count("what was lost before is lost") == 1
    fresh.close()
    assert keeper(tmp_path, NAME).exists()
    assert owed(other) == [9.0, 9.0, 9.0]
