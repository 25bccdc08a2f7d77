"""What a file in the Trace Event Format must hold to be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NAMES = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}

SLACK_US = 0.001
"""Times are written in microseconds: what is less is rounding."""


def check_trace(document: Mapping[str, Any]) -> None:
    """Raise ValueError where an object is no trace in that format."""
    events = document["traceEvents"]
    named: set[tuple[str, int, int]] = set()
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        where = event.get("pid"), event.get("tid")
        _demand(all(type(each) is int and each >= 0 for each in where), "pid and tid", event)
        if event.get("ph") == "M":
            _check_name(event)
            named.add((event["name"], *where))
        else:
            _check_span(event)
            tracks.setdefault(where, []).append((event["ts"], event["ts"] + event["dur"]))
    for pid, thread in tracks:
        _demand(("process_name", pid, 0) in named, "a name of the process", pid)
        _demand(("thread_name", pid, thread) in named, "a name of the thread", (pid, thread))
        _check_nesting(tracks[pid, thread])


def _check_name(event: Mapping[str, Any]) -> None:
    _demand(event["name"] in _NAMES, "a known kind of metadata", event)
    key, kind = _NAMES[event["name"]]
    _demand(list(event["args"]) == [key] and type(event["args"][key]) is kind, key, event)


def _check_span(event: Mapping[str, Any]) -> None:
    _demand(event.get("ph") == "X", "a complete event", event)
    _demand(isinstance(event["name"], str) and event["name"], "a name", event)
    for key in ("ts", "dur"):
        _demand(type(event[key]) in (int, float) and event[key] >= 0, key, event)
    _demand(isinstance(event["args"], dict), "args", event)


def _check_nesting(spans: Iterable[tuple[float, float]]) -> None:
    open_: list[float] = []
    for start, end in sorted(spans, key=lambda each: (each[0], -each[1])):
        while open_ and open_[-1] <= start + SLACK_US:
            open_.pop()
        inside = not open_ or end <= open_[-1] + SLACK_US
        _demand(inside, "spans one in the other, or one after the other", (start, end))
        open_.append(end)


def _demand(holds: object, what: str, where: object) -> None:
    if not holds:
        raise ValueError(f"expected {what}: {where}")
