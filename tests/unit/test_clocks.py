"""Two clocks are compared by questions and answers, some of which wait on the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.transport.clocks import MOST_KEPT, Clocks

MS = 1_000_000


def ask(clocks: Clocks, now: int, offset: int, ways: tuple[int, int], held: int = 0) -> int:
    """Ask, and hear the answer after so long on each way; the time then."""
    out, back = ways
    asked = clocks.ask(now)
    heard = now + out + offset
    now += out + held + back
    clocks.answered(asked, heard, heard + held, now)
    return now


@given(st.integers(-(2**60), 2**60), st.integers(0, 2**40), st.integers(0, 2**40))
def test_where_both_ways_are_alike_the_difference_is_exact(
    offset: int, way: int, held: int
) -> None:
    clocks = Clocks()
    ask(clocks, 2**61, offset, (way, way), held)
    assert clocks.best is not None
    assert clocks.best.offset == offset
    assert clocks.best.round_trip == 2 * way


def test_the_sample_that_waited_least_counts() -> None:
    clocks, now = Clocks(), 10**12
    for number in range(MOST_KEPT):
        wait = 10 * MS * abs(number - 5)
        now = ask(clocks, now, 3_000 * MS, (MS + wait, MS), MS)
    assert clocks.best is not None
    assert (clocks.best.offset, clocks.best.round_trip) == (3_000 * MS, 2 * MS)


def test_an_old_sample_is_dropped_since_clocks_drift() -> None:
    clocks = Clocks()
    now = ask(clocks, 10**12, 0, (MS, MS))
    for _ in range(MOST_KEPT):
        now = ask(clocks, now, 40 * MS, (2 * MS, 2 * MS))
    assert clocks.best is not None
    assert clocks.best.offset == 40 * MS


def test_what_nobody_asked_for_and_what_makes_no_sense_says_nothing() -> None:
    clocks = Clocks()
    clocks.answered(0, 5, 6, 100)
    asked = clocks.ask(10)
    clocks.answered(11, 5, 6, 100)
    clocks.answered(asked, 7, 6, 100)
    assert clocks.best is None
    asked = clocks.ask(20)
    clocks.answered(asked, 0, 2**63, 100)
    assert (clocks.best, clocks.count) == (None, 0)
    asked = clocks.ask(30)
    clocks.answered(asked, 40, 40, 50)
    clocks.answered(asked, 140, 140, 51)
    assert clocks.count == 1, "an answer counts once"


def test_a_time_of_the_peer_in_seconds_of_this_node() -> None:
    clocks = Clocks()
    assert clocks.own_seconds(5 * 10**9) is None
    ask(clocks, 10**12, 2 * 10**9, (MS, MS))
    assert clocks.own_seconds(5 * 10**9) == 3.0
    assert clocks.own_seconds(0) is None, "the peer did not say"
