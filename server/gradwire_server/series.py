"""Metrics of what comes and goes: peers, ranks, wires. Read when somebody asks for them.

A series is there for as long as a job that has it. A counter of one that comes back goes on
where it was: what falls is taken for a restart of the daemon.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

T = TypeVar("T")

MOST_KEPT = 1024
"""Peers, ranks or wires of jobs that have ended, whose counters are remembered."""


class Kind(Enum):
    """What becomes of the figures of several jobs that have the same peer, rank or wire."""

    COUNTER = "counter"
    TOTAL = "total"
    HIGHEST = "highest"
    LOWEST = "lowest"


@dataclass(frozen=True)
class Figure(Generic[T]):
    """One metric, or the part of it that has these labels, and how it is read."""

    name: str
    text: str
    kind: Kind
    read: Callable[[T], float | None]
    """None: not known, no series."""
    labels: Mapping[str, str] = field(default_factory=dict)


class Series(Collector, Generic[T]):
    """The figures of one sort of thing, each by its label's value; without a label there is
    one of it, and `always`, with 0 where no job has any.
    """

    def __init__(
        self, label: str, figures: Sequence[Figure[T]], *, always: bool = True
    ) -> None:
        self._always = always and not label
        self._label = [label] if label else []
        self._figures = figures
        self._sources: dict[object, Callable[[], Iterable[tuple[str, T]]]] = {}
        self._kept: OrderedDict[str, list[float]] = OrderedDict()
        # Who scrapes does so in a thread of its own: nothing is counted twice, or not at all.
        self._lock = threading.Lock()

    def add(self, source: object, read: Callable[[], Iterable[tuple[str, T]]]) -> None:
        """A job has these; called in any thread, until `drop` has returned."""
        with self._lock:
            self._sources[source] = read

    def drop(self, source: object) -> None:
        """The job has ended: its counters are as high as they will be."""
        with self._lock:
            if (read := self._sources.pop(source, None)) is None:
                return
            for value, thing in read():
                kept = self._kept.setdefault(value, [0.0] * len(self._figures))
                self._kept.move_to_end(value)
                for number, figure in enumerate(self._figures):
                    if figure.kind is Kind.COUNTER:
                        kept[number] += figure.read(thing) or 0.0
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)

    def describe(self) -> Iterable[Metric]:
        """See Collector: the families, empty."""
        return self._families([{} for _ in self._figures])

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        with self._lock:
            values = self._values()
        return self._families(values)

    def _values(self) -> list[dict[str, float]]:
        """Of each figure what it is, by the label's value."""
        start = {"": 0.0} if self._always else {}
        values: list[dict[str, float]] = [dict(start) for _ in self._figures]
        for read in self._sources.values():
            for value, thing in read():
                for number, figure in enumerate(self._figures):
                    if (one := figure.read(thing)) is not None:
                        _join(values[number], value, one, figure.kind)
        for number, figure in enumerate(self._figures):
            if figure.kind is Kind.COUNTER:
                for value in values[number].keys() & self._kept.keys():
                    values[number][value] += self._kept[value][number]
        return values

    def _families(self, values: Sequence[Mapping[str, float]]) -> list[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for figure, by_value in zip(self._figures, values, strict=True):
            if figure.name not in families:
                counts = figure.kind is Kind.COUNTER
                make = CounterMetricFamily if counts else GaugeMetricFamily
                labels = [*self._label, *figure.labels]
                families[figure.name] = make(figure.name, figure.text, labels=labels)
            for value, number in sorted(by_value.items()):
                own = [value] if self._label else []
                families[figure.name].add_metric([*own, *figure.labels.values()], number)
        return list(families.values())


def _join(values: dict[str, float], value: str, one: float, kind: Kind) -> None:
    before = values.get(value)
    if before is None:
        values[value] = one
    elif kind is Kind.HIGHEST:
        values[value] = max(before, one)
    elif kind is Kind.LOWEST:
        values[value] = min(before, one)
    else:
        values[value] = before + one
