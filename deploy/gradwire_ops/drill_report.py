"""Drills' findings, for people. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gradwire_ops.drill_plan import DrillPlan
    from gradwire_ops.drill_verdict import Finding

_HEADINGS = ("detected", "recovered", "added", "lost", "bits")


def title(plan: DrillPlan) -> str:
    """Of the table."""
    layout = f"{plan.nodes} x {plan.ranks_per_node} ranks, {plan.steps} steps"
    return f"Drills: {layout}, seed {plan.seed}"


def table(title: str, findings: Sequence[Finding]) -> Table:
    """A line for each repetition."""
    result = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("fault", no_wrap=True)
    result.add_column("verdict", no_wrap=True)
    for heading in _HEADINGS:
        result.add_column(heading, justify="right", no_wrap=True)
    for one in findings:
        result.add_row(one.fault, _verdict(one), *_figures(one))
    return result


def _verdict(one: Finding) -> Text:
    return Text(one.verdict, style="green" if one.good else "red")


def _figures(one: Finding) -> tuple[str, ...]:
    times = (one.detect_seconds, one.recover_seconds, one.added_seconds)
    return (
        *map(format_seconds, times),
        "-" if one.steps_lost is None else str(one.steps_lost),
        {True: "equal", False: "OTHER", None: "-"}[one.bits_equal],
    )


def summary(findings: Sequence[Finding]) -> str:
    """One line: how many of each verdict."""
    counts = Counter(one.verdict for one in findings)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())


def troubles(findings: Iterable[Finding]) -> list[str]:
    """What is to be said of findings that are not as they should be."""
    return [
        f"{one.fault} {one.repetition}: {one.verdict}: "
        + "; ".join(filter(None, (one.error, *one.leftovers)))
        for one in findings
        if not one.good
    ]


def format_seconds(seconds: float | None) -> str:
    """A dash for none."""
    return "-" if seconds is None else f"{seconds:.2f} s"


def percentile(values: Iterable[float | None], part: float) -> float | None:
    """The least value that so many of them do not exceed (nearest rank); None of none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return known[max(0, math.ceil(part * len(known)) - 1)]
