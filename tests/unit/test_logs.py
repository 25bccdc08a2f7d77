"""What the daemon's log looks like, and how often it says the same."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from gradwire_server.logs import MOST_ALIKE, WINDOW_SECONDS, Repeats, about, formatter

if TYPE_CHECKING:
    from collections.abc import Callable


def record(text: str, *values: object, line: int = 1, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord(
        "gradwire_server.x", logging.WARNING, "x.py", line, text, values, None
    )
    vars(made).update(fields)
    return made


class Log:
    """What passes a filter in virtual time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.said: list[str] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._filter = Repeats(self.handle, lambda: self.now, self._later)

    def handle(self, line: logging.LogRecord) -> None:
        """As a handler does."""
        if self._filter.filter(line):
            self.said.append(line.getMessage())

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._due.append((self.now + seconds, action))

    def pass_(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds
        due = [action for at, action in self._due if at <= self.now]
        self._due = [each for each in self._due if each[0] > self.now]
        for action in due:
            action()


def test_the_sixth_of_a_kind_within_ten_seconds_is_held_and_then_counted_once() -> None:
    log = Log()
    for number in range(12):
        log.handle(record("lane %d broke", number))
        log.pass_(0.5)
    assert log.said == [f"lane {number} broke" for number in range(MOST_ALIKE)]
    log.pass_(3.9)
    assert len(log.said) == MOST_ALIKE
    log.pass_(0.2)
    assert log.said[MOST_ALIKE:] == ["7 more like this in 10 s, the last: lane 11 broke"]
    log.pass_(60.0)
    assert len(log.said) == MOST_ALIKE + 1
    log.handle(record("lane %d broke", 99))
    assert log.said[-1] == "lane 99 broke"


def test_who_speaks_slowly_is_never_held() -> None:
    log = Log()
    for number in range(30):
        log.handle(record("lane %d broke", number))
        log.pass_(WINDOW_SECONDS / MOST_ALIKE)
    assert log.said == [f"lane {number} broke" for number in range(30)]


def test_other_places_words_and_jobs_are_of_another_kind() -> None:
    log = Log()
    for _ in range(MOST_ALIKE):
        log.handle(record("lane broke", generation="a"))
    log.handle(record("lane broke", generation="a", line=2))
    log.handle(record("lane is back", generation="a"))
    log.handle(record("lane broke", generation="b"))
    assert len(log.said) == MOST_ALIKE + 3
    log.handle(record("lane broke", generation="a"))
    assert len(log.said) == MOST_ALIKE + 3


def test_where_each_is_news_none_is_held() -> None:
    log = Log()
    for number in range(20):
        fields: dict[str, Any] = about("a", round_=number, each_is_news=True)
        log.handle(record("round %d waits", number, **fields))
    assert len(log.said) == 20


def test_what_is_remembered_of_jobs_that_ended_goes() -> None:
    log = Log()
    for number in range(500):
        log.handle(record("generation has ended", generation=str(number)))
        log.pass_(1.0)
    remembered = vars(log._filter)["_windows"]  # noqa: SLF001 - what leaks is private
    assert len(remembered) <= WINDOW_SECONDS + 1


def test_json_has_time_level_message_logger_and_what_the_line_is_about() -> None:
    fields: dict[str, Any] = about(
        "0123456789abcdef", round_=7, ranks=(2, 3), node=1, each_is_news=True
    )
    made = record("round %d waits for %s", 7, "rank 2", **fields)
    line = json.loads(formatter("json", terminal=True).format(made))
    when = datetime.fromisoformat(line.pop("time"))
    assert when.tzinfo is not None
    assert when == datetime.fromtimestamp(made.created, UTC)
    assert line == {
        "level": "WARNING",
        "message": "round 7 waits for rank 2",
        "logger": "gradwire_server.x",
        "generation": "0123456789abcdef",
        "round": 7,
        "ranks": [2, 3],
        "node": 1,
    }


def test_json_is_one_line_even_with_a_traceback() -> None:
    try:
        raise ValueError("no\nsuch thing")
    except ValueError:
        made = record("a fault of\nthis daemon's own")
        made.exc_info = sys.exc_info()
    text = formatter("json", terminal=False).format(made)
    assert "\n" not in text
    assert "no\nsuch thing" in json.loads(text)["exc_info"]


@pytest.mark.parametrize(
    ("form", "terminal", "is_json"),
    [
        ("auto", True, False),
        ("auto", False, True),
        ("text", False, False),
        ("json", True, True),
    ],
)
def test_auto_is_for_people_on_a_terminal_only(
    form: str, terminal: bool, is_json: bool
) -> None:
    made = record("ready")
    text = formatter(form, terminal=terminal).format(made)  # type: ignore[arg-type] # parametrized
    assert text.startswith("{") == is_json
    assert is_json or text.endswith("gradwire WARNING ready")
