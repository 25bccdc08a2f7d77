"""Who is named, when, and how often; what is waited for are stalls that the test makes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from gradwire_server.chain import Stall
from gradwire_server.group import Group, Member, Node, Picture
from gradwire_server.lateness import MOST_LINES, MOST_TOLD, Lateness
from gradwire_server.metrics import Metrics
from gradwire_server.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Iterable

NODES = (Node("a", "10.0.0.1:1", "alpha", (0, 1)), Node("b", "10.0.0.2:1", "beta", (2, 3)))
WHO = "rank 1 (pid 11 on alpha)"


class Watch:
    """A lateness, and what it logs."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        picture = Picture("0123456789", 4, NODES)
        group = Group(picture, 0)
        for rank in (0, 1):
            group.admit(Member(rank, "alpha", 10 + rank), picture, 0)
        self.registry = CollectorRegistry()
        terms = Terms(4096, 4, 60.0, 15.0, first_timeout_seconds=600.0)
        self._lateness = Lateness(group, Metrics(self.registry, "0"), terms)
        self._log = caplog

    def look(
        self, stalls: Iterable[Stall], now: float, failed: Iterable[int] = ()
    ) -> list[tuple[int, str]]:
        overdue = self._lateness.look(stalls, now, lambda sequence: sequence in failed)
        return [(sequence, str(error)) for sequence, error in overdue]

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What was logged since the last time."""
        said = [(each.levelname, each.getMessage()) for each in self._log.records]
        self._log.clear()
        assert all(text.startswith("generation 01234567: ") for _, text in said)
        return [(level, text.removeprefix("generation 01234567: ")) for level, text in said]


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Watch:
    return Watch(caplog)


def test_a_stall_is_warned_of_once_and_once_told_to_be_over(watch: Watch) -> None:
    assert watch.look([Stall(7, 100.0, [1])], 114.0) == []
    assert watch.lines == []
    assert watch.look([Stall(7, 100.0, [1])], 115.0) == []
    assert watch.lines == [("WARNING", f"round 7 has waited 15.0 s for {WHO}")]
    assert watch.look([Stall(7, 100.0, [0])], 116.0) == []
    assert watch.lines == []
    assert watch.registry.get_sample_value("gradwire_stalled_rounds") == 1
    watch.look([], 121.25)
    watch.look([], 122.0)
    told = f"round 7 goes on after 21.2 s; it had waited for {WHO}"
    assert watch.lines == [("INFO", told)]
    assert watch.registry.get_sample_value("gradwire_stalled_rounds") == 0


def test_the_chunks_of_a_collective_are_one_line_and_the_oldest_counts(watch: Watch) -> None:
    stalls = [Stall(7, 103.0, [0]), Stall(7, 100.0, [1]), Stall(8, 101.0, [0, 1])]
    watch.look(stalls, 120.0)
    assert [text for _, text in watch.lines] == [
        f"round 7 has waited 20.0 s for {WHO}",
        f"round 8 has waited 19.0 s for rank 0 (pid 10 on alpha), {WHO}",
    ]
    assert watch.registry.get_sample_value("gradwire_stalled_rounds") == 2
    watch.look([Stall(7, 119.0, [0])], 120.0)
    assert len(watch.lines) == 2
    watch.look([Stall(7, 119.0, [0])], 140.0)
    assert watch.lines == []


def test_the_other_nodes_are_named_where_no_local_rank_is_missing(watch: Watch) -> None:
    watch.look([Stall(7, 100.0, [])], 120.0)
    ((_, text),) = watch.lines
    assert text.endswith("for node 1 at 10.0.0.2:1 on beta (ranks 2, 3)")


def test_of_what_has_failed_nobody_says_that_it_goes_on(watch: Watch) -> None:
    watch.look([Stall(7, 100.0, [1])], 120.0)
    assert len(watch.lines) == 1
    watch.look([], 121.0, failed=[7])
    watch.look([], 122.0)
    assert watch.lines == []


def test_of_many_only_some_have_a_line_of_their_own(watch: Watch) -> None:
    stalls = [Stall(sequence, 100.0, [1]) for sequence in range(MOST_LINES + 30)]
    watch.look(stalls, 120.0)
    lines = watch.lines
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == ("WARNING", "so have 30 more")
    watch.look(stalls, 121.0)
    assert watch.lines == []
    watch.look([], 122.0)
    assert len(watch.lines) == MOST_LINES


def test_what_was_told_long_ago_is_forgotten(watch: Watch) -> None:
    for sequence in range(2 * MOST_TOLD):
        watch.look([Stall(sequence, 100.0, [1])], 120.0)
    assert len(watch.lines) > 2 * MOST_TOLD
    watch.look([Stall(0, 100.0, [1])], 120.0)
    assert any(level == "WARNING" for level, _ in watch.lines)


@pytest.mark.parametrize(
    ("first_step", "missing", "seconds", "words"),
    [
        (False, [1], 60.0, f"for {WHO}; the timeout is 60 s"),
        (False, [], 61.0, "(ranks 2, 3); the timeout is 60 s"),
        (True, [1], 600.0, f"for {WHO}; the first step's timeout is 600 s"),
    ],
)
def test_what_waits_too_long_fails_in_the_first_step_later(
    watch: Watch, first_step: bool, missing: list[int], seconds: float, words: str
) -> None:
    stall = Stall(7, 0.0, missing, first_step)
    assert watch.look([stall], seconds) == []
    ((sequence, text),) = watch.look([stall], seconds + 0.5)
    assert sequence == 7
    assert text.startswith(f"round 7 has waited {seconds + 0.5:.1f} s")
    assert text.endswith(words)
