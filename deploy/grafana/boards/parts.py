"""What a dashboard is made of: its panels, and what each of them asks Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

HERE = 'instance=~"$instance"'
"""Every query is about the daemons that are chosen at the top of the dashboard."""

WIDE = 24
HALF = 12
THIRD = 8
QUARTER = 6

Kind: TypeAlias = Literal["figure", "lines", "area", "matrix", "states", "table"]
"""figure: one number now; area: lines on top of one another; matrix: a number now for each
daemon and peer; states: up or down over time; table: the labels of series."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and what its series are called in the legend."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Its description says what to read from it, and when to worry."""

    kind: Kind
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    width: int = HALF
    alarm: float | None = None
    """From here on a figure is red."""
    most: float | None = None
    """Where the axis ends."""
    more_is_better: bool = False
    """Which end of a matrix' colours is green."""

    @property
    def height(self) -> int:
        """In rows of the grid."""
        return 4 if self.kind == "figure" else 8


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard; its file has the name of its uid."""

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]


def series(metric: str, by: str, join: str = "sum") -> str:
    """A gauge. Workers of one daemon have a series each, hence the aggregation."""
    return f"{join} by ({by}) ({metric}{{{HERE}}})"


def rate(metric: str, by: str, join: str = "sum") -> str:
    """How fast a counter grows; by as many labels as are wanted, or none."""
    grouping = f" by ({by}) " if by else ""
    return f"{join}{grouping}(rate({metric}{{{HERE}}}[$__rate_interval]))"


def grown(metric: str, by: str) -> str:
    """By how much a counter grew lately: for what happens too seldom to have a rate."""
    return f"sum by ({by}) (increase({metric}{{{HERE}}}[5m]))"


def figure(title: str, description: str, expression: str, alarm: float | None = None) -> Panel:
    """A count of things."""
    query = Query(expression, title.lower())
    return Panel("figure", title, description, "short", (query,), QUARTER, alarm)
