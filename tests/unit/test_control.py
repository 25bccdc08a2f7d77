"""The counters of an arena, and the semaphores that wake who polls them."""

from __future__ import annotations

import mmap
import threading

import pytest

from gradwire._shared_memory import from_now
from gradwire_proto.arena import SLOT_BLOCK_BYTES, Layout
from gradwire_proto.control import (
    ABSENT,
    FOREVER,
    LONGEST_SPEC,
    SHARES,
    Control,
    Ticket,
)
from gradwire_proto.control import STREAMS as IN_MESSAGES
from gradwire_proto.diary import TIMES_KEPT

LAYOUT = Layout(ranks=3, slots=2, chunk_bytes=64)


@pytest.fixture
def control() -> Control:
    made = Control(mmap.mmap(-1, LAYOUT.size), LAYOUT)
    made.initialise()
    return made


def test_a_fresh_arena_is_empty_and_has_no_limit(control: Control) -> None:
    assert control.seats() == [ABSENT] * 3
    assert control.limit == FOREVER
    assert (control.taken(), control.failures) == (0, 0)
    assert {control.added(rank) for rank in range(3)} == {0}


def test_every_rank_has_counters_of_its_own(control: Control) -> None:
    for rank in range(3):
        control.submitted(rank, 10 + rank)
        control.brought(rank, 20 + rank)
        control.add(rank, 30 + rank)
        control.take(rank, 40 + rank, 1_000_000_000)
        control.resolved(rank, 50 + rank, 60 + rank)
    for rank in range(3):
        each = control.progress(rank)
        assert (each.submitted, each.brought, each.added) == (10 + rank, 20 + rank, 30 + rank)
        assert (each.taken, each.resolved, each.bytes) == (40 + rank, 50 + rank, 60 + rank)
        assert (each.rounds, each.seconds) == (1, 1.0)
    assert control.taken() == 40


def test_the_latest_collectives_have_the_times_at_which_they_were_handed_in(
    control: Control,
) -> None:
    for sequence in range(2 * TIMES_KEPT):
        control.diary.hand_in(1, sequence + 1, sequence * 1_000_000_000)
        control.submitted(1, sequence + 1)
    last = 2 * TIMES_KEPT - 1
    assert control.handed_in(1, last - 1) == {last - 1: last - 1, last: last}
    # The oldest place may be written while it is read.
    assert min(control.handed_in(1, 0)) == TIMES_KEPT + 1
    assert control.handed_in(0, 0) == control.handed_in(2, 0) == {}
    assert control.progress(2).first_step == 0


def test_a_ticket_that_is_passed_over_counts_as_taken_but_not_as_a_round(
    control: Control,
) -> None:
    control.take(0, 1, 0)
    assert (control.progress(0).taken, control.progress(0).rounds) == (1, 0)


def test_what_a_ticket_says_stands_until_its_slot_is_used_again(control: Control) -> None:
    control.open(0, 7, 2, b"spec of seven")
    control.open(1, 8, 0, b"")
    assert control.ticket(0) == Ticket(7, 2, b"spec of seven")
    assert control.ticket(1) == Ticket(8, 0, b"")
    assert control.says(0, 7, 2, b"spec of seven")
    for other in ((8, 2, b"spec of seven"), (7, 3, b"spec of seven"), (7, 2, b"spec of eight")):
        assert not control.says(0, *other)
    control.open(2, 9, 0, b"x" * LONGEST_SPEC)
    assert control.ticket(2).spec == b"x" * LONGEST_SPEC
    with pytest.raises(ValueError, match="nothing of ticket 0"):
        control.ticket(0)


def test_opening_a_ticket_forgets_the_weight_and_the_void_of_the_one_before(
    control: Control,
) -> None:
    control.open(0, 0, 0, b"")
    assert control.weight(0, 2.5) == 2.5
    assert control.weight(0, 1.0) == 3.5
    control.spoil(0)
    assert control.is_void(0)
    control.open(2, 1, 0, b"")
    assert control.weight(2) == 0.0
    assert not control.is_void(2)


def test_done_and_released_are_said_of_a_ticket_and_not_of_its_slot(control: Control) -> None:
    control.finish(0)
    control.release(0)
    assert (control.is_done(0), control.is_done(2)) == (True, False)
    assert (control.is_released(0), control.is_released(2)) == (True, False)


def test_taking_a_seat_wakes_everybody(control: Control) -> None:
    control.take_seat(1, SHARES)
    control.take_seat(2, IN_MESSAGES)
    assert control.seats() == [ABSENT, SHARES, IN_MESSAGES]
    for rank in range(3):
        control.wait(rank, from_now(0) + 60)  # returns at once


def test_a_wait_uses_up_all_wakes_before_it_and_none_after_it(control: Control) -> None:
    for _ in range(5):
        control.wake(0)
    control.wait(0, from_now(0) + 60)
    waiting = threading.Thread(target=control.wait, args=(0, from_now(0) + 60))
    waiting.start()
    control.wake(1)
    control.wake(0)
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_wait_without_a_wake_ends_at_its_time(control: Control) -> None:
    control.wait(2, from_now(0) - 1)


def test_a_spec_with_the_longest_text_fits() -> None:
    assert SLOT_BLOCK_BYTES - LONGEST_SPEC == 256
    assert LONGEST_SPEC > 3 * 400 + 100
