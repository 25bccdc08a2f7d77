"""The daemon's log, as the status shows it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from gradwire_server.events import MOST_EVENTS, MOST_LETTERS, Events

if TYPE_CHECKING:
    import pytest

log = logging.getLogger("gradwire_server.engine")


def test_what_is_logged_is_an_event_with_what_it_is_of() -> None:
    log.setLevel(logging.INFO)
    events, before = Events(), time.time()
    log.warning("before")
    with events.listening():
        log.debug("too small a thing")
        log.info("%d things", 3)
        log.warning("late", extra={"generation": "g", "round": 0, "ranks": (2, 5)})
        log.critical("over", extra={"rank": 7})
        logging.getLogger("somebody.else").error("not ours")
    log.warning("after")
    first, second, third = events.latest()
    assert [first.text, second.text, third.text] == ["3 things", "late", "over"]
    assert [first.level, second.level, third.level] == ["info", "warning", "error"]
    assert (second.generation, second.round, list(second.ranks)) == ("g", 0, [2, 5])
    assert not first.HasField("round")
    assert (first.generation, list(first.ranks), list(third.ranks)) == ("", [], [7])
    assert before - 1 <= first.time.seconds <= time.time()


def test_the_latest_are_kept_and_no_more_and_a_long_line_is_cut() -> None:
    log.setLevel(logging.INFO)
    events = Events()
    with events.listening():
        for number in range(MOST_EVENTS + 5):
            log.info("%d", number)
        log.info("x" * (2 * MOST_LETTERS))
    latest = events.latest()
    assert len(latest) == MOST_EVENTS
    assert (latest[0].text, latest[-2].text) == ("6", str(MOST_EVENTS + 4))
    assert len(latest[-1].text) == MOST_LETTERS


def test_a_line_that_makes_no_sense_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    log.setLevel(logging.INFO)
    events = Events()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with events.listening():
        log.info("fine")
        log.info("bad", extra={"round": "no number"})
    assert [event.text for event in events.latest()] == ["fine"]
