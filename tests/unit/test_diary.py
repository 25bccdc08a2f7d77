"""The diary of an arena: every moment of a ticket is in one stage."""

from __future__ import annotations

import mmap

import pytest

from gradwire_proto.arena import Layout
from gradwire_proto.control import Control
from gradwire_proto.diary import DEEDS_KEPT, TIMES_KEPT, Deed, Diary, HandedIn, Pace, read_deeds

LAYOUT = Layout(ranks=3, slots=2, chunk_bytes=64)
SECOND = 10**9


@pytest.fixture
def control() -> Control:
    made = Control(mmap.mmap(-1, LAYOUT.size), LAYOUT)
    made.initialise()
    return made


def handed_in(control: Control, rank: int, sequence: int, at: int) -> HandedIn:
    mine = control.diary.hand_in(rank, sequence + 1, at * SECOND)
    control.submitted(rank, sequence + 1)
    return mine


def in_seconds(diary: Diary) -> dict[str, float]:
    return {stage: seconds for stage, seconds in diary.totals().seconds.items() if seconds}


def passes(diary: Diary, number: int, times: list[tuple[int, int, int, int]]) -> None:
    for rank, since, begun, ended in times:
        diary.add(number, rank, since * SECOND, begun * SECOND, ended * SECOND)


def test_a_ticket_begins_when_the_first_rank_has_handed_it_in(control: Control) -> None:
    diary = control.diary
    handed_in(control, 2, 0, 10)
    mine = handed_in(control, 0, 0, 13)
    # The first rank is busy with something else for a second more.
    diary.open(0, 0, mine, 14 * SECOND)
    # Rank 1 comes to it at once; rank 2 has handed it in long ago, and does not see it yet.
    passes(diary, 0, [(0, 13, 14, 16), (1, 17, 17, 18), (2, 10, 20, 21)])
    # The first rank takes earlier results first.
    diary.take(0, 0, 24 * SECOND, 25 * SECOND)
    assert in_seconds(diary) == {
        "wait_local": 3 + 1, "queue": 1 + 2 + 3, "copy_in": 2, "local_sum": 2, "copy_out": 1,
    }  # fmt: skip
    assert diary.totals().whole == 15


def test_a_later_chunk_begins_when_it_is_begun(control: Control) -> None:
    diary = control.diary
    handed_in(control, 1, 0, 10)
    handed_in(control, 0, 0, 11)
    diary.open(1, 0, None, 20 * SECOND)
    passes(diary, 1, [(0, 11, 20, 21), (1, 10, 21, 22), (2, 10, 22, 23)])
    diary.take(1, 0, 0, 24 * SECOND)
    assert diary.totals().whole == 4
    assert "wait_local" not in in_seconds(diary)


def test_what_the_daemon_did_lies_between_the_last_part_and_the_result(
    control: Control,
) -> None:
    diary = control.diary
    diary.open(0, 0, handed_in(control, 0, 0, 10), 10 * SECOND)
    passes(diary, 0, [(0, 10, 10, 11), (1, 11, 11, 12), (2, 12, 12, 13)])
    assert diary.passed(0) == 13 * SECOND
    diary.exchange(0, {"wire": 2 * SECOND, "wait_peers": 5 * SECOND}, 20 * SECOND)
    diary.take(0, 0, 0, 21 * SECOND)
    totals = diary.totals()
    assert (totals.seconds["wire"], totals.seconds["wait_peers"]) == (2, 5)
    assert totals.seconds["copy_out"] == 1
    assert sum(totals.seconds.values()) == totals.whole == 11


def test_a_slot_begins_anew_with_each_ticket(control: Control) -> None:
    diary = control.diary
    for number in (0, LAYOUT.slots):
        diary.open(number, number, handed_in(control, 0, number, 10), 10 * SECOND)
        passes(diary, number, [(0, 10, 10, 11), (1, 11, 11, 12), (2, 12, 12, 13)])
        diary.take(number, 0, 0, 13 * SECOND)
    assert in_seconds(diary) == {"copy_in": 2, "local_sum": 4}


def test_who_is_far_ahead_waits_at_least_since_its_oldest_record(control: Control) -> None:
    """Its time of handing this one in has been written over."""
    for sequence in range(100):
        handed_in(control, 1, sequence, 10 + sequence)
    oldest = 10 + 100 - TIMES_KEPT + 1
    control.diary.open(0, 0, handed_in(control, 0, 0, 200), 201 * SECOND)
    control.diary.take(0, 0, 0, 202 * SECOND)
    assert control.diary.totals().whole == 202 - oldest
    assert in_seconds(control.diary)["wait_local"] == 200 - oldest


@pytest.fixture
def full(control: Control) -> tuple[Diary, list[HandedIn]]:
    """The first rank hands in four at once, and has begun the first two."""
    mine = [handed_in(control, 0, sequence, 10) for sequence in range(4)]
    for number in range(LAYOUT.slots):
        control.diary.open(number, number, mine[number], 10 * SECOND)
        passes(control.diary, number, [(0, 10, 10, 10)])
    control.diary.hold(2, 11 * SECOND)
    # It looks again now and then.
    control.diary.hold(2, 13 * SECOND)
    return control.diary, mine


def test_without_a_free_slot_one_waits_for_whom_the_oldest_waits(
    full: tuple[Diary, list[HandedIn]],
) -> None:
    diary, mine = full
    for number in range(LAYOUT.slots):
        passes(diary, number, [(1, 20, 20, 20), (2, 20, 20, 21)])
        diary.exchange(number, {"wire": 3 * SECOND, "wait_peers": 4 * SECOND}, 28 * SECOND)
        diary.take(number, 0, 28 * SECOND, 28 * SECOND)
    before = diary.totals()
    for number in (2, 3):
        diary.open(number, number, mine[number], 29 * SECOND)
        diary.take(number, 0, 0, 29 * SECOND)
    after = diary.totals()
    spent = {
        stage: seconds - before.seconds[stage]
        for stage, seconds in after.seconds.items()
        if seconds > before.seconds[stage]
    }
    # Of the ten seconds for rank 1 the first had passed before there was no slot.
    assert spent == {"wait_local": 2 * 9, "wait_peers": 2 * 4, "queue": 2 * 6}
    assert after.whole - before.whole == 2 * 19


def test_who_hands_in_later_has_not_waited_for_what_was_before(
    control: Control, full: tuple[Diary, list[HandedIn]]
) -> None:
    diary, mine = full
    for number in range(LAYOUT.slots):
        passes(diary, number, [(1, 20, 20, 20), (2, 20, 20, 20)])
        diary.take(number, 0, 20 * SECOND, 20 * SECOND)
    for number in (2, 3):
        diary.open(number, number, mine[number], 20 * SECOND)
        diary.take(number, 0, 0, 20 * SECOND)
    before = diary.totals().seconds["wait_local"]
    diary.open(4, 4, handed_in(control, 0, 4, 21), 22 * SECOND)
    diary.take(4, 0, 0, 22 * SECOND)
    assert diary.totals().seconds["wait_local"] == before


def test_a_rank_communicates_from_its_first_tensor_to_the_last_result(
    control: Control,
) -> None:
    diary = control.diary
    for sequence, at, step in ((0, 10, 1), (1, 11, 1), (2, 20, 2)):
        diary.hand_in(1, sequence + 1, at * SECOND, step)
        if sequence == 1:
            diary.rest(1, 14 * SECOND)
            assert diary.pace(1, 18 * SECOND) == Pace(1, 4)
    assert diary.pace(1, 23 * SECOND) == Pace(2, 7)
    diary.rest(1, 23 * SECOND)
    diary.rest(1, 30 * SECOND)
    assert diary.pace(1, 40 * SECOND) == Pace(2, 7)


def noted(diary: Diary, rank: int, count: int, *, since: int = 0) -> None:
    for number in range(since, since + count):
        diary.take(0, rank, number, number + 1)


def test_ranks_note_what_they_do_while_somebody_wants_to_know(control: Control) -> None:
    diary = control.diary
    control.open(0, 7, 2, b"spec")
    noted(diary, 1, 3)
    assert diary.deeds(1, 0) == (0, b"")
    diary.tracing = True
    diary.add(0, 2, 0, 20, 30)
    noted(diary, 2, 1, since=40)
    count, words = diary.deeds(2, 0)
    assert list(read_deeds(words)) == [
        Deed("local_sum", 7, 2, 20, 30), Deed("copy_out", 7, 2, 40, 41),
    ]  # fmt: skip
    assert diary.deeds(2, count) == (count, b"")
    diary.tracing = False
    noted(diary, 2, 1)
    assert diary.deeds(2, 0)[0] == count


@pytest.mark.parametrize("before", [0, 100, DEEDS_KEPT - 1, DEEDS_KEPT])
@pytest.mark.parametrize("count", [1, 5, DEEDS_KEPT - 1, DEEDS_KEPT, 3 * DEEDS_KEPT + 7])
def test_the_latest_deeds_come_in_order_and_once(
    control: Control, before: int, count: int
) -> None:
    diary = control.diary
    diary.tracing = True
    noted(diary, 1, before)
    seen, _ = diary.deeds(1, 0)
    noted(diary, 1, count, since=before)
    total, words = diary.deeds(1, seen)
    begun = [deed.begun for deed in read_deeds(words)]
    kept = min(count, DEEDS_KEPT - 1)
    assert begun == list(range(total - kept, total))
    assert total == before + count


def test_deeds_that_are_cut_off_are_refused() -> None:
    with pytest.raises(ValueError, match="expected deeds of 32 bytes, got 33"):
        list(read_deeds(bytes(33)))
