"""Who is waited for, and how much of the time."""

from __future__ import annotations

import pytest

from gradwire_server.straggling import HALF_LIFE_SECONDS, MOST_KEPT, Straggling

RANKS = (4, 5)


def steps(
    straggling: Straggling, lag: float, seconds: int, start: int = 0, buckets: int = 1
) -> None:
    """A step a second, of 0.8 s for rank 4; rank 5 comes later with every bucket of it."""
    for step in range(start, start + seconds):
        for bucket in range(buckets):
            sequence, at = step * buckets + bucket, step + 0.5 + 0.1 * bucket
            straggling.came(4, sequence, at)
            straggling.came(5, sequence, at + lag)
        straggling.look(step + 1.0, RANKS)


def test_nobody_has_straggled_at_first() -> None:
    assert Straggling(RANKS, 100.0).scores() == {4: 0.0, 5: 0.0}


@pytest.mark.parametrize("buckets", [1, 3])
def test_who_comes_later_has_the_part_of_the_time_for_which_the_others_waited(
    buckets: int,
) -> None:
    """A bucket that another follows keeps nobody waiting: only the last of a step does."""
    straggling = Straggling(RANKS, 0.0)
    steps(straggling, 0.2, 50, buckets=buckets)
    assert straggling.scores() == {4: 0.0, 5: pytest.approx(0.2)}


def test_what_is_long_ago_counts_less() -> None:
    straggling = Straggling(RANKS, 0.0)
    steps(straggling, 0.4, 300)
    steps(straggling, 0.0, int(HALF_LIFE_SECONDS), start=300)
    assert straggling.scores()[5] == pytest.approx(0.2, rel=0.02)


def test_a_rank_that_does_not_come_at_all_straggles_more_and_more() -> None:
    straggling = Straggling(RANKS, 0.0)
    straggling.came(4, 0, 0.5)
    scores = []
    for now in (1.0, 2.0, 3.0, 10.0):
        straggling.look(now, RANKS)
        scores.append(straggling.scores()[5])
    assert scores == sorted(scores)
    assert scores[0] == 0.0
    assert 0.85 < scores[-1] < 1.0
    straggling.came(5, 0, 10.5)
    straggling.look(11.0, RANKS)
    # No second is counted twice.
    assert straggling.scores()[5] == pytest.approx(10 / 11, rel=0.05)
    assert straggling.scores()[4] == 0.0


def test_a_wait_counts_in_full_though_a_look_at_its_beginning_says_nothing() -> None:
    """For 1.5 s of 2.4: a look in the first second can't know whether the other goes on."""
    straggling = Straggling(RANKS, 0.0)
    for step in range(40):
        begin = 2.4 * step + 0.7
        straggling.came(4, step, begin)
        for now in range(int(begin) + 1, int(begin + 1.5) + 1):
            straggling.look(float(now), RANKS)
        straggling.came(5, step, begin + 1.5)
    straggling.look(97.0, RANKS)
    assert straggling.scores() == {4: 0.0, 5: pytest.approx(1.5 / 2.4, rel=0.05)}


def test_what_another_node_has_sent_before_makes_all_ranks_late() -> None:
    straggling = Straggling(RANKS, 0.0)
    straggling.asked(0, 1.0)
    straggling.came(4, 0, 2.0)
    straggling.came(5, 0, 3.0)
    straggling.look(10.0, RANKS)
    assert straggling.scores() == {4: pytest.approx(0.1), 5: pytest.approx(0.2)}


def test_a_rank_that_has_left_is_waited_for_by_nobody() -> None:
    straggling = Straggling(RANKS, 0.0)
    straggling.came(4, 0, 0.5)
    for now in (1.0, 2.0, 3.0):
        straggling.look(now, [4])
    assert straggling.scores() == {4: 0.0, 5: 0.0}


def test_of_more_than_can_be_kept_the_latest_are_a_sample() -> None:
    straggling = Straggling(RANKS, 0.0)
    for sequence in range(20 * MOST_KEPT):
        straggling.came(4, sequence, sequence / 1000)
        straggling.came(5, sequence, sequence / 1000 + 0.0003)
    straggling.look(20 * MOST_KEPT / 1000, RANKS)
    assert straggling.scores()[5] == pytest.approx(0.3)
    assert straggling.since == 20 * MOST_KEPT


def test_arrivals_may_be_read_instead_of_told() -> None:
    straggling = Straggling(RANKS, 0.0)
    straggling.look(1.0, RANKS, {7: {4: 0.5, 5: 0.75}, 8: {4: 0.9}})
    assert straggling.since == 8
    assert straggling.scores()[5] == pytest.approx(0.25 / 0.5)


def test_a_collective_of_which_nothing_is_known_any_more_counts_for_nothing() -> None:
    """More than are kept were asked for between two looks."""
    straggling = Straggling([0], 0.0)
    for sequence in range(MOST_KEPT + 5):
        straggling.asked(sequence, 0.1)
    straggling.look(0.2, [0])
    for sequence in range(MOST_KEPT + 5, 2 * MOST_KEPT + 10):
        straggling.asked(sequence, 0.3)
    straggling.look(0.4, [0])
    assert straggling.scores()[0] <= 1.0
