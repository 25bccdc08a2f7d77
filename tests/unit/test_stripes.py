"""How shares are cut and numbered, and which lane takes what."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.round import Key
from gradwire_server.transport.stripes import (
    ALIGNMENT,
    FAR_LANES,
    FAR_PIECE_BYTES,
    FAR_SECONDS,
    MOST_LANES,
    MOST_PIECES,
    NEAR_LANES,
    NEAR_PIECE_BYTES,
    WINDOW,
    Order,
    Spread,
    cut,
    lanes_for,
)

LARGEST = 32 << 20


@given(st.integers(0, LARGEST), st.integers(1, MOST_LANES))
def test_the_pieces_of_a_share_follow_one_another_and_end_where_it_does(
    size: int, lanes: int
) -> None:
    pieces = cut(size, lanes)
    assert [start for start, _ in pieces] == [0] + [stop for _, stop in pieces[:-1]]
    assert pieces[-1][1] == size
    assert len(pieces) == 1 or all(start < stop for start, stop in pieces)


@given(st.integers(0, LARGEST), st.integers(1, MOST_LANES))
def test_pieces_are_few_and_alike_and_end_between_elements(size: int, lanes: int) -> None:
    pieces = cut(size, lanes)
    most = NEAR_PIECE_BYTES if lanes <= NEAR_LANES else FAR_PIECE_BYTES
    lengths = [stop - start for start, stop in pieces]
    assert len(pieces) <= MOST_PIECES
    assert max(lengths) <= most
    assert all(start % ALIGNMENT == 0 for start, _ in pieces)
    assert len(set(lengths[:-1])) <= 1
    assert len(pieces) <= max(1, -(-size // most))


@pytest.mark.parametrize(
    ("round_trip", "addresses", "lanes"),
    [
        (0.0, 1, NEAR_LANES),
        (FAR_SECONDS / 2, 1, NEAR_LANES),
        (FAR_SECONDS, 1, FAR_LANES),
        (0.3, 1, FAR_LANES),
        (0.0, 6, 6),
        (0.0, 1000, MOST_LANES),
    ],
)
def test_a_longer_way_and_more_networks_get_more_lanes(
    round_trip: float, addresses: int, lanes: int
) -> None:
    assert lanes_for(round_trip, addresses) == lanes


def test_lanes_that_are_alike_are_used_in_turn() -> None:
    spread = Spread()
    assert [spread.choose([0, 0, 0]) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8)))
def test_the_lane_with_least_to_do_is_chosen_however_many_there_are(
    queues: list[list[int]],
) -> None:
    spread = Spread()
    for queued in queues:
        assert queued[spread.choose(queued)] == min(queued)


def test_a_slow_lane_gets_less() -> None:
    spread, queued, taken = Spread(), [0.0, 0.0], Counter[int]()
    for _ in range(1000):
        lane = spread.choose([int(each) for each in queued])
        queued[lane] += 100
        taken[lane] += 1
        queued = [max(0.0, left - speed) for left, speed in zip(queued, (75, 25), strict=True)]
    assert 2.5 < taken[0] / taken[1] < 3.5


def test_a_share_names_the_one_of_its_round_that_went_before() -> None:
    order = Order()
    rounds = [Key(0, 0), Key(0, 1), Key(0, 0), Key(0, 0), Key(1, 0), Key(0, 1)]
    assert [order.next(key) for key in rounds] == [
        (1, 0), (2, 0), (3, 1), (4, 3), (5, 0), (6, 2),
    ]  # fmt: skip


def test_rounds_long_past_are_forgotten() -> None:
    order = Order()
    order.next(Key(0, 0))
    for sequence in range(1, WINDOW + 1):
        order.next(Key(sequence, 0))
    assert order.next(Key(WINDOW, 0)) == (WINDOW + 2, WINDOW + 1)
    assert order.next(Key(0, 0)) == (WINDOW + 3, 0)
