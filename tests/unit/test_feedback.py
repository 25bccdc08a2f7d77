"""What lossy wires have lost: two versions, one of which counts."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire_proto.residuals import ITEMSIZE
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.errors import ReductionError
from gradwire_server.feedback import BRIEF_USES, LONG_UNUSED, Feedback, Kept
from gradwire_server.memory_folder import MemoryFolder
from gradwire_server.round import Coding

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire_server.feedback import Loan

STEP = 100
ELEMENTS = 250


@pytest.fixture
def feedback(tmp_path: Path) -> Feedback:
    return Feedback(MemoryFolder(tmp_path), STEP * ITEMSIZE)


def coded(identity: int = 7, *, kept: bool = True, revoked: bool = False) -> Coding:
    return Coding(pb.WIRE_INT8, identity=identity, feedback=kept, revoked=revoked)


def lend(  # noqa: PLR0913 - what each test says of it
    feedback: Feedback,
    identity: int = 7,
    chunk: int = 0,
    elements: int = ELEMENTS,
    *,
    kept: bool = True,
    revoked: bool = False,
) -> Loan:
    coding = coded(identity, kept=kept, revoked=revoked)
    return asyncio.run(feedback.lend(coding, elements, chunk))


def bring(feedback: Feedback, value: float, chunks: int = 3, identity: int = 7) -> list[Loan]:
    """The first rounds of a collective, which lose `value` everywhere."""
    loans = [lend(feedback, identity, chunk) for chunk in range(chunks)]
    for loan in loans:
        assert loan.memory is not None
        loan.memory[1].fill_(value)
    return loans


def reduce(feedback: Feedback, value: float, identity: int = 7) -> None:
    """A collective that loses `value` everywhere, and has its result."""
    for loan in bring(feedback, value, identity=identity):
        feedback.done(1, loan)


def owed(feedback: Feedback, identity: int = 7) -> list[float]:
    (kept,) = [each for each in feedback.kept() if each.identity == identity]
    return [x for values in feedback.values(kept) for x in values.tolist()]


def test_the_first_round_owes_nothing(feedback: Feedback) -> None:
    loan = lend(feedback)
    assert loan.count == 0
    assert loan.memory is not None
    before, after = loan.memory
    assert before is None
    assert len(after) == STEP


def test_each_chunk_has_its_own_and_the_last_is_shorter(feedback: Feedback) -> None:
    loans = bring(feedback, 0.0)
    for number, loan in enumerate(loans):
        assert loan.memory is not None
        loan.memory[1].fill_(number + 1.0)
        feedback.done(1, loan)
    assert owed(feedback) == [1.0] * 100 + [2.0] * 100 + [3.0] * 50


def test_it_counts_only_once_all_of_a_collective_has_a_result(feedback: Feedback) -> None:
    reduce(feedback, 1.0)
    *first, last = bring(feedback, 2.0)
    for loan in first:
        feedback.done(2, loan)
    assert owed(feedback) == [1.0] * ELEMENTS
    feedback.done(2, last)
    assert owed(feedback) == [2.0] * ELEMENTS


@pytest.mark.parametrize("brought", [1, 2])
def test_nothing_of_a_collective_that_failed_counts(feedback: Feedback, brought: int) -> None:
    reduce(feedback, 1.0)
    *done, running = bring(feedback, 99.0, brought + 1)
    for loan in done:
        feedback.done(2, loan)
    running.release()
    feedback.failed(2)
    assert owed(feedback) == [1.0] * ELEMENTS
    again = lend(feedback)
    assert again.count == 1
    assert again.memory is not None
    assert again.memory[0] is not None
    assert again.memory[0].tolist() == [1.0] * STEP


def test_what_is_revoked_is_as_if_it_had_not_been(feedback: Feedback) -> None:
    reduce(feedback, 1.0)
    reduce(feedback, 1e30)
    assert feedback.kept([7])[0].counts == (1, 1, 1)
    for chunk in range(3):
        loan = lend(feedback, chunk=chunk, revoked=True)
        assert loan.count == 1
        assert loan.memory is not None
        assert loan.memory[0] is not None
        assert set(loan.memory[0].tolist()) == {1.0}
        loan.memory[1].fill_(2.0)
        feedback.done(3, loan)
    assert owed(feedback) == [2.0] * ELEMENTS


def test_what_has_been_written_over_is_not_revoked(feedback: Feedback) -> None:
    reduce(feedback, 1.0)
    reduce(feedback, 2.0)
    lend(feedback).release()
    assert lend(feedback, revoked=True).count == 2


def test_a_round_waits_for_the_collective_before_it(feedback: Feedback) -> None:
    async def run() -> tuple[bool, int]:
        loans = [await feedback.lend(coded(), ELEMENTS, chunk) for chunk in range(3)]
        second = asyncio.create_task(feedback.lend(coded(), ELEMENTS, 0))
        for loan in loans[:2]:
            feedback.done(1, loan)
        await asyncio.sleep(0)
        waited = not second.done()
        feedback.done(1, loans[2])
        return waited, (await second).count

    assert asyncio.run(run()) == (True, 1)


def test_another_size_under_the_same_name_begins_anew(feedback: Feedback) -> None:
    reduce(feedback, 1.0)
    assert lend(feedback, elements=40).count == 0
    assert feedback.dropped == 1


def test_without_feedback_only_the_rounds_are_counted(feedback: Feedback) -> None:
    for chunk in range(3):
        loan = lend(feedback, chunk=chunk, kept=False)
        assert loan.memory is None
        feedback.done(1, loan)
    assert lend(feedback, kept=False).count == 1
    assert owed(feedback) == []


def test_what_was_a_bucket_for_one_step_is_dropped_in_the_end(feedback: Feedback) -> None:
    reduce(feedback, 1.0, identity=1)
    for _ in range(LONG_UNUSED):
        reduce(feedback, 2.0, identity=2)
    lend(feedback, identity=3)
    assert [kept.identity for kept in feedback.kept()] == [2, 3]
    assert feedback.dropped == 1


def test_what_is_used_seldom_stays(feedback: Feedback) -> None:
    """A generator that steps once while its critic steps a hundred times."""
    for _ in range(BRIEF_USES + 1):
        for _ in range(100):
            reduce(feedback, 2.0, identity=2)
        reduce(feedback, 1.0, identity=1)
    for _ in range(3 * LONG_UNUSED):
        reduce(feedback, 2.0, identity=2)
    lend(feedback, identity=3)
    assert feedback.dropped == 0


def test_it_lies_in_the_folder_for_shared_memory_and_goes_with_the_job(
    feedback: Feedback, tmp_path: Path
) -> None:
    reduce(feedback, 1.0)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("gradwire-")
    assert file.read_bytes().startswith(b"gradwres")
    assert file.stat().st_mode & 0o777 == 0o660
    feedback.close()
    assert list(tmp_path.iterdir()) == []


def test_each_takes_one_descriptor_which_goes_with_it(feedback: Feedback) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for identity in range(1, 21):
        reduce(feedback, 1.0, identity=identity)
    assert len(os.listdir("/proc/self/fd")) <= before + 20
    feedback.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_where_shared_memory_is_short_it_is_kept_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feedback = Feedback(MemoryFolder(tmp_path / "missing"), STEP * ITEMSIZE)
    reduce(feedback, 3.0)
    assert owed(feedback) == [3.0] * ELEMENTS
    assert "no shared memory in" in caplog.text
    feedback.close()


@pytest.mark.case("S07")
def test_what_no_memory_has_room_for_fails_its_round_and_takes_none(
    tmp_path: Path,
) -> None:
    feedback = Feedback(MemoryFolder(tmp_path), 4 << 20)
    with pytest.raises(ReductionError, match=r"no memory for what .* loses .* feedback=off"):
        lend(feedback, elements=1 << 45)
    assert list(tmp_path.iterdir()) == []
    reduce_ = lend(feedback)
    assert reduce_.count == 0


# -- checkpoints


def restored(
    feedback: Feedback, counts: tuple[int, ...], size: int = ELEMENTS, elements: int = ELEMENTS
) -> bool:
    async def run() -> bool:
        restoring = await feedback.restore(Kept(7, elements, counts, size))
        if restoring is None:
            return False
        for part in torch.arange(float(size)).split(30):
            restoring.write(part)
        return True

    return asyncio.run(run())


@pytest.mark.parametrize("counts", [(3, 3, 3), (4, 3, 2)])
def test_a_job_goes_on_with_what_was_kept(feedback: Feedback, counts: tuple[int, ...]) -> None:
    reduce(feedback, 1.0)
    assert restored(feedback, counts)
    assert owed(feedback) == list(range(ELEMENTS))
    loan = lend(feedback, chunk=1)
    assert loan.count == counts[1]
    assert loan.memory is not None
    assert loan.memory[0] is not None
    assert loan.memory[0].tolist() == list(range(100, 200))


def test_counts_alone_are_restored_too(feedback: Feedback) -> None:
    assert restored(feedback, (5, 5, 5), size=0)
    assert lend(feedback, kept=False).count == 5


@pytest.mark.parametrize(
    ("counts", "size", "elements"),
    [
        ((3, 2), ELEMENTS, ELEMENTS),
        ((1, 1, 1), ELEMENTS, 260),
        ((-1, -1, -1), ELEMENTS, ELEMENTS),
        ((1 << 62,) * 3, ELEMENTS, ELEMENTS),
        ((), 0, 0),
    ],
)
def test_what_does_not_fit_is_not_taken(
    feedback: Feedback, counts: tuple[int, ...], size: int, elements: int
) -> None:
    reduce(feedback, 1.0)
    assert not restored(feedback, counts, size, elements)
    assert owed(feedback) == [1.0] * ELEMENTS
    assert feedback.dropped == 1


def test_what_came_only_in_part_does_not_count(feedback: Feedback) -> None:
    async def run() -> None:
        restoring = await feedback.restore(Kept(7, ELEMENTS, (3, 3, 3), ELEMENTS))
        assert restoring is not None
        restoring.write(torch.ones(120))
        assert restoring.missing == 130

    asyncio.run(run())
    assert lend(feedback).count == 0


def test_a_round_called_off_while_its_file_is_made_leaves_none(tmp_path: Path) -> None:
    """Whoever resumes would go on with the empty one."""

    async def main() -> None:
        feedback = Feedback(MemoryFolder(tmp_path), STEP * ITEMSIZE)
        lending = asyncio.create_task(feedback.lend(coded(), 1 << 20, 0))
        # It is in a thread by then.
        await asyncio.sleep(0)
        lending.cancel()
        await asyncio.gather(lending, return_exceptions=True)
        assert lending.cancelled()
        await asyncio.get_running_loop().shutdown_default_executor()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
