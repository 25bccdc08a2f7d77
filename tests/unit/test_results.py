from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.results import ResultSlots


def test_slots_are_lent_once() -> None:
    slots = ResultSlots(3)
    assert {slots.take(), slots.take(), slots.take()} == {0, 1, 2}
    assert slots.take() is None


def taken(slots: ResultSlots) -> int:
    slot = slots.take()
    assert slot is not None
    return slot


def test_a_result_is_free_once_all_its_readers_use_their_slot_again() -> None:
    slots = ResultSlots(1)
    slots.publish(taken(slots), {0: 5, 1: 6})
    assert not slots.reuse(0, 5)
    assert slots.free == 0
    assert slots.reuse(1, 6)
    assert slots.free == 1


def test_a_result_that_nobody_reads_is_free_at_once() -> None:
    slots = ResultSlots(1)
    slots.publish(taken(slots), {})
    assert slots.free == 1


def test_a_round_that_failed_gives_its_slot_back() -> None:
    slots = ResultSlots(1)
    slots.discard(taken(slots))
    assert slots.free == 1


def test_a_slot_brought_for_the_first_time_frees_nothing() -> None:
    slots = ResultSlots(2)
    slots.publish(taken(slots), {0: 0})
    assert not slots.reuse(0, 1)
    assert not slots.reuse(1, 0)
    assert slots.free == 1


def test_a_rank_that_is_gone_holds_nothing() -> None:
    slots = ResultSlots(3)
    slots.publish(taken(slots), {0: 0, 1: 0})
    slots.publish(taken(slots), {0: 1})
    slots.publish(taken(slots), {1: 1})
    slots.forget(0)
    assert slots.free == 1
    slots.forget(1)
    assert slots.free == 3


@given(ranks=st.integers(1, 4), size=st.integers(1, 8), rounds=st.integers(0, 60))
def test_ranks_that_use_their_slots_in_turn_never_run_out(
    ranks: int, size: int, rounds: int
) -> None:
    slots = ResultSlots(size)
    for round_ in range(rounds):
        slot = round_ % size
        for rank in range(ranks):
            slots.reuse(rank, slot)
        slots.publish(taken(slots), dict.fromkeys(range(ranks), slot))
        assert slots.free == size - min(round_ + 1, size)
