"""What the daemon's log looks like: lines for people, or JSON for what collects them.

Whoever logs something of a job says which with `extra=about(...)`: people read it in the words,
machines in fields of their own.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Format: TypeAlias = Literal["auto", "text", "json"]

TEXT = "%(asctime)s gradwire %(levelname)s %(message)s"

WINDOW_SECONDS = 10.0
MOST_ALIKE = 5
"""Lines from the same place, of the same job, that are let through in a window."""

_NEWS = "each_is_news"

_Later: TypeAlias = Callable[[float, Callable[[], None]], None]


def about(
    generation: str,
    *,
    round_: int | None = None,
    ranks: Iterable[int] = (),
    node: int | None = None,
    each_is_news: bool = False,
) -> dict[str, object]:
    """For `extra=`: of what a line is. `node`: the other one, where it is of a link.

    Where each is news, none counts as a repeat: whoever logs it limits itself.
    """
    fields: dict[str, object] = {"generation": generation}
    if round_ is not None:
        fields["round"] = round_
    if among := list(ranks):
        fields["ranks"] = among
    if node is not None:
        fields["node"] = node
    if each_is_news:
        fields[_NEWS] = True
    return fields


def set_up(level: str, form: Format) -> None:
    """Have this process log to stderr, from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(form, terminal=sys.stderr.isatty()))
    handler.addFilter(Repeats(handler.handle))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def formatter(form: Format, *, terminal: bool) -> logging.Formatter:
    """`auto`: text on a terminal, JSON elsewhere."""
    if form == "text" or (form == "auto" and terminal):
        return logging.Formatter(TEXT)
    return JsonFormatter(
        ["levelname", "message", "name"],
        timestamp="time",
        rename_fields={"levelname": "level", "name": "logger"},
        reserved_attrs=[*RESERVED_ATTRS, _NEWS],
    )


@dataclass(slots=True)
class _Window:
    """Lines that are alike, for a while from the first one on."""

    until: float
    passed: int = 0
    held: int = 0
    last: logging.LogRecord | None = None
    """Of those that were held back."""


class Repeats(logging.Filter):
    """Lets a few lines of a kind pass in a while, and then says once how many there were.

    Of a kind are those that one place in the code has said of one job.
    """

    def __init__(
        self,
        say: Callable[[logging.LogRecord], object],
        clock: Callable[[], float] = time.monotonic,
        later: _Later | None = None,
    ) -> None:
        """`later(seconds, action)` has an action done after so long; by default in a thread."""
        super().__init__()
        self._say = say
        self._clock = clock
        self._later = later or _in_a_thread
        self._windows: dict[tuple[object, ...], _Window] = {}
        # Filters are called outside of their handler's lock, from whatever thread logs.
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is to be said now."""
        fields = vars(record)
        if fields.get(_NEWS):
            return True
        kind = (record.pathname, record.lineno, record.msg, fields.get("generation"))
        with self._lock:
            return self._passes(kind, record, self._clock())

    def _passes(self, kind: tuple[object, ...], record: logging.LogRecord, now: float) -> bool:
        window = self._windows.get(kind)
        if window is None or (now >= window.until and not window.held):
            self._forget(now)
            window = self._windows[kind] = _Window(now + WINDOW_SECONDS)
        if window.passed < MOST_ALIKE:
            window.passed += 1
            return True
        if not window.held:
            self._later(window.until - now, lambda: self._tell(kind, window))
        window.held += 1
        window.last = record
        return False

    def _forget(self, now: float) -> None:
        """Windows that are over and have nothing to tell: else each job would leave some."""
        over = [kind for kind, each in self._windows.items() if each.until <= now]
        for kind in over:
            if not self._windows[kind].held:
                del self._windows[kind]

    def _tell(self, kind: tuple[object, ...], window: _Window) -> None:
        with self._lock:
            del self._windows[kind]
        if window.last is not None:
            self._say(_summary(window.last, window.held))


def _summary(last: logging.LogRecord, count: int) -> logging.LogRecord:
    """Of the same fields as the last line that was held back."""
    fields: Mapping[str, object] = vars(last)
    record = logging.makeLogRecord({**fields, "created": time.time(), _NEWS: True})
    record.msg = (
        f"{count} more like this in {WINDOW_SECONDS:g} s, the last: {last.getMessage()}"
    )
    record.args = ()
    record.exc_info = record.exc_text = None
    return record


def _in_a_thread(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
