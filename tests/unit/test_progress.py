"""How far the ranks of a job are: all of them must find the same."""

from __future__ import annotations

from itertools import permutations

import pytest

from gradwire_proto.progress import Muster, Position, muster, position_of, shift
from gradwire_proto.v1 import aggregator_pb2 as pb

TIMEOUT = pb.Failure(kind=pb.Failure.KIND_TIMEOUT, reason="rank 1 was late")


def progress(rank: int, sequence: int, chunk: int = 0, *lapses: int) -> pb.Progress:
    told = [pb.Lapse(sequence=each, failure=TIMEOUT) for each in lapses]
    return pb.Progress(rank=rank, sequence=sequence, chunk=chunk, lapses=told)


def test_the_lowest_of_those_that_are_furthest_provides_what_others_lack() -> None:
    found = muster([progress(0, 4, 1), progress(1, 4, 2), progress(2, 4, 2), progress(3, 3, 7)])
    assert found == Muster(Position(3, 7), Position(4, 2), 1, {})


def test_ranks_that_are_alike_have_nothing_to_replay() -> None:
    found = muster([progress(rank, 9, 3) for rank in range(3)])
    assert (found.low, found.high, found.provider) == (Position(9, 3), Position(9, 3), 0)


def test_a_collective_that_failed_for_one_has_failed_for_all() -> None:
    """Also for the rank that has results of its first chunks, and for one that waits for it."""
    found = muster([progress(0, 6, 0, 5), progress(1, 5, 2), progress(2, 5)])
    assert found.low == found.high == Position(6, 0)
    assert found.lapses == {5: TIMEOUT}


def test_a_failure_further_on_changes_nobodys_place_until_he_comes_to_it() -> None:
    found = muster([progress(0, 3, 1, 5), progress(1, 5)])
    assert (found.low, found.high, found.provider) == (Position(3, 1), Position(6, 0), 1)


def test_whoever_looks_finds_the_same() -> None:
    """Ranks learn of one another in an order that differs from node to node."""
    everybody = [progress(0, 7), progress(1, 5, 2, 3), progress(2, 7, 0, 5, 6)]
    found = [muster(order) for order in permutations(everybody)]
    assert all(each == found[0] for each in found)
    assert (found[0].low, found[0].provider) == (Position(7, 0), 0)


@pytest.mark.parametrize(
    ("number", "chunk", "lapses", "expected"),
    [
        (4, 2, (), (4, 2)),
        (4, 2, (3, 5), (4, 2)),
        (4, 2, (4,), (5, 0)),
        (4, 0, (6, 4, 5, 8), (7, 0)),
    ],
)
def test_a_position_passes_over_what_failed(
    number: int, chunk: int, lapses: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert position_of(number, chunk, lapses) == Position(*expected)


def test_the_numbers_move_by_one_once_however_many_attempts_there_are() -> None:
    assert [shift(attempt) for attempt in range(4)] == [0, 1, 1, 1]
