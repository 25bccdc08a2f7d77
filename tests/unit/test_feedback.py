"""What lossy wires have lost: two versions, one of which counts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire_server.feedback import ITEMSIZE, KEPT_TURNS, TURNS_TO_LOOK, Feedback, Kept

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire_server.feedback import Loan

STEP = 100
ELEMENTS = 250


@pytest.fixture
def feedback(tmp_path: Path) -> Feedback:
    return Feedback(tmp_path, STEP * ITEMSIZE)


def lend(feedback: Feedback, identity: int = 7, chunk: int = 0, *, kept: bool = True) -> Loan:
    return asyncio.run(feedback.lend(identity, ELEMENTS, chunk, feedback=kept))


def reduce(feedback: Feedback, value: float, identity: int = 7, chunk: int = 0) -> None:
    """A round that loses `value` everywhere, and is committed."""
    loan = lend(feedback, identity, chunk)
    assert loan.memory is not None
    loan.memory[1].fill_(value)
    loan.commit()
    loan.release()


def owed(feedback: Feedback, identity: int = 7) -> list[float]:
    kept = {each.identity: each for each, _ in feedback.kept()}
    return kept[identity].values.tolist()


def test_the_first_round_owes_nothing(feedback: Feedback) -> None:
    loan = lend(feedback)
    assert loan.count == 0
    assert loan.memory is not None
    before, after = loan.memory
    assert before is None
    assert len(after) == STEP


def test_each_chunk_has_its_own_and_the_last_is_shorter(feedback: Feedback) -> None:
    for chunk in range(3):
        reduce(feedback, chunk + 1.0, chunk=chunk)
    assert owed(feedback) == [1.0] * 100 + [2.0] * 100 + [3.0] * 50


def test_what_a_round_wrote_counts_only_once_it_is_committed(feedback: Feedback) -> None:
    reduce(feedback, 1.0)
    failed = lend(feedback)
    assert failed.memory is not None
    failed.memory[1].fill_(99.0)
    failed.release()
    again = lend(feedback)
    assert again.count == 1
    assert again.memory is not None
    assert again.memory[0] is not None
    assert again.memory[0].tolist() == [1.0] * STEP
    assert owed(feedback)[:STEP] == [1.0] * STEP


def test_a_round_waits_for_the_one_before_it(feedback: Feedback) -> None:
    async def run() -> tuple[bool, int]:
        first = await feedback.lend(7, ELEMENTS, 0, feedback=True)
        second = asyncio.create_task(feedback.lend(7, ELEMENTS, 0, feedback=True))
        other = await feedback.lend(7, ELEMENTS, 1, feedback=True)
        other.release()
        await asyncio.sleep(0)
        waited = not second.done()
        first.commit()
        first.release()
        return waited, (await second).count

    assert asyncio.run(run()) == (True, 1)


def test_another_size_under_the_same_name_begins_anew(feedback: Feedback) -> None:
    reduce(feedback, 1.0)
    loan = asyncio.run(feedback.lend(7, 40, 0, feedback=True))
    assert loan.count == 0
    assert feedback.dropped == 1


def test_without_feedback_only_the_rounds_are_counted(feedback: Feedback) -> None:
    loan = lend(feedback, kept=False)
    assert loan.memory is None
    loan.commit()
    loan.release()
    assert lend(feedback, kept=False).count == 1
    assert owed(feedback) == []


def test_what_nothing_uses_any_more_is_dropped(feedback: Feedback) -> None:
    reduce(feedback, 1.0, identity=1)
    for _ in range(2 * TURNS_TO_LOOK + KEPT_TURNS * 6):
        reduce(feedback, 2.0, identity=2)
    assert [kept.identity for kept, _ in feedback.kept()] == [2]
    assert feedback.dropped == 1


def test_what_is_used_in_every_step_stays(feedback: Feedback) -> None:
    for _ in range(100):
        for identity in range(1, 21):
            reduce(feedback, float(identity), identity=identity)
    assert feedback.dropped == 0
    assert len(list(feedback.kept())) == 20


def test_it_lies_in_the_folder_for_shared_memory_and_goes_with_the_job(
    feedback: Feedback, tmp_path: Path
) -> None:
    reduce(feedback, 1.0)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("gradwire-")
    assert file.read_bytes().startswith(b"gradwres")
    feedback.close()
    assert list(tmp_path.iterdir()) == []


def test_where_shared_memory_is_short_it_is_kept_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feedback = Feedback(tmp_path / "missing", STEP * ITEMSIZE)
    reduce(feedback, 3.0)
    assert owed(feedback)[:STEP] == [3.0] * STEP
    assert "no shared memory for" in caplog.text
    feedback.close()


# -- checkpoints


def restored(feedback: Feedback, counts: tuple[int, ...], elements: int = ELEMENTS) -> bool:
    values = torch.arange(float(ELEMENTS))
    return feedback.restore(Kept(7, counts, values), elements)


@pytest.mark.parametrize("counts", [(3, 3, 3), (4, 3, 3), (5, 5)])
def test_a_job_goes_on_with_what_was_kept(feedback: Feedback, counts: tuple[int, ...]) -> None:
    """Even if chunks were cut otherwise, as long as all had been reduced as often."""
    reduce(feedback, 1.0)
    assert restored(feedback, counts)
    assert owed(feedback) == list(range(ELEMENTS))
    loan = lend(feedback, chunk=1)
    assert loan.count == counts[1]
    assert loan.memory is not None
    assert loan.memory[0] is not None
    assert loan.memory[0].tolist() == list(range(100, 200))


@pytest.mark.parametrize(
    ("counts", "elements"), [((3, 2), ELEMENTS), ((1, 1, 1), 260), ((-1, -1, -1), ELEMENTS)]
)
def test_what_does_not_fit_is_not_taken(
    feedback: Feedback, counts: tuple[int, ...], elements: int
) -> None:
    reduce(feedback, 1.0)
    assert not restored(feedback, counts, elements)
    assert owed(feedback)[:STEP] == [1.0] * STEP
    assert feedback.dropped == 1
