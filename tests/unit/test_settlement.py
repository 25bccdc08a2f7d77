"""What a node keeps, it keeps until no rank can lack it."""

from __future__ import annotations

import pytest

from gradwire_server.round import Key
from gradwire_server.settlement import FIRST, Settlement


class Slots:
    """Which rounds' slots have been given back, in order."""

    def __init__(self, settlement: Settlement) -> None:
        self._settlement = settlement
        self.free: list[Key] = []

    def keep(self, *keys: Key) -> None:
        for key in keys:
            self._settlement.keep(key, lambda key=key: self.free.append(key))  # type: ignore[misc] # a lambda's default


def ended(settlement: Settlement, *keys: Key) -> None:
    for key in keys:
        settlement.begin(key)
    for key in keys:
        settlement.end(key)


def test_a_round_is_settled_once_all_before_it_are() -> None:
    settlement = Settlement([1], keeps=True)
    first, second, third = Key(0, 0), Key(0, 1), Key(1, 0)
    for key in (first, second, third):
        settlement.begin(key)
    settlement.end(second)
    assert settlement.before == FIRST
    settlement.end(first)
    assert settlement.before == Key(0, 2)
    settlement.end(third)
    assert settlement.before == Key(1, 1)


def test_a_round_that_never_began_here_settles_nothing() -> None:
    settlement = Settlement([1], keeps=True)
    settlement.begin(Key(0, 0))
    settlement.end(Key(5, 0))
    assert settlement.before == FIRST


def test_what_is_kept_goes_once_the_last_of_the_others_has_it() -> None:
    settlement = Settlement([1, 2], keeps=True)
    slots = Slots(settlement)
    slots.keep(Key(0, 0), Key(0, 1))
    settlement.settled(1, Key(0, 2))
    assert slots.free == []
    settlement.settled(2, Key(0, 1))
    assert slots.free == [Key(0, 0)]
    assert settlement.kept == 1
    settlement.settled(2, Key(1, 0))
    assert slots.free == [Key(0, 0), Key(0, 1)]
    assert settlement.kept == 0


def test_what_all_have_already_is_not_kept() -> None:
    """Another node may have its result, and say so, before the task of this one has ended."""
    settlement = Settlement([1], keeps=True)
    slots = Slots(settlement)
    settlement.settled(1, Key(3, 1))
    slots.keep(Key(3, 0))
    assert slots.free == [Key(3, 0)]
    slots.keep(Key(3, 1))
    assert slots.free == [Key(3, 0)]


def test_an_older_word_or_a_stranger_changes_nothing() -> None:
    settlement = Settlement([1, 2], keeps=True)
    slots = Slots(settlement)
    settlement.settled(1, Key(4, 0))
    settlement.settled(1, Key(2, 0))
    settlement.settled(7, Key(9, 0))
    slots.keep(Key(3, 0))
    settlement.settled(2, Key(3, 1))
    assert slots.free == [Key(3, 0)]


def test_a_node_that_left_needs_nothing() -> None:
    settlement = Settlement([1, 2], keeps=True)
    slots = Slots(settlement)
    slots.keep(Key(0, 0))
    settlement.settled(1, Key(0, 1))
    settlement.depart(2)
    assert slots.free == [Key(0, 0)]


@pytest.mark.parametrize(("peers", "keeps"), [([1], False), ([], True)])
def test_without_anybody_to_keep_it_for_nothing_is_kept(peers: list[int], keeps: bool) -> None:
    settlement = Settlement(peers, keeps=keeps)
    slots = Slots(settlement)
    slots.keep(Key(8, 0))
    assert slots.free == [Key(8, 0)]
    assert settlement.kept == 0


def test_at_the_end_everything_is_given_back() -> None:
    settlement = Settlement([1], keeps=True)
    slots = Slots(settlement)
    slots.keep(Key(0, 0), Key(1, 0))
    settlement.close()
    assert slots.free == [Key(0, 0), Key(1, 0)]


def test_a_rank_that_gets_messages_has_what_it_says_it_has() -> None:
    """What was sent to it is in no memory that outlives the daemon."""
    settlement = Settlement([1], keeps=True)
    settlement.hold(3, FIRST)
    settlement.hold(4, FIRST)
    ended(settlement, Key(0, 0), Key(0, 1), Key(1, 0))
    assert settlement.before == FIRST
    settlement.hold(3, Key(1, 1))
    settlement.hold(4, Key(0, 1))
    assert settlement.before == Key(0, 1)
    settlement.hold(4, Key(0, 0))
    assert settlement.before == Key(0, 1)
    settlement.release(4)
    assert settlement.before == Key(1, 1)
