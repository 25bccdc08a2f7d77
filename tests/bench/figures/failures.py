"""FAILURES.md: the whole of it, from what drills and soak found. Pure."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from figures.report import made_on
from figures.tables import table
from gradwire_ops.drill_report import percentile
from gradwire_ops.drill_verdict import expected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from figures.report import Result
    from figures.setting import Row

HEAD = """# Failures

`make drill` runs all of this and writes this file anew; `make drill ARGS="--only partition"` is
one fault. Each run is a job of 2 nodes with 2 ranks each, struck at a random moment, also in
the midst of a bucket, and compared bit by bit with the undisturbed job of the same seed.
Detected: from the fault to the first error, or line of a daemon's log, about it. Recovered:
from the fault's end (a killed daemon: from when it is ready again) to the first step that all
ranks have done. Added: to the time of the undisturbed job, with the fault's own duration.
Seconds, p50 / p95 / max. All nodes, daemons and ranks share this one machine."""

QUICK = "**A quick run, of a few jobs. These figures mean nothing.**"

SOAK_HEAD = """## Soak

`make soak` runs this. Growth is the slope of a least-squares line through samples of the
process that grows most, without the first tenth of them, for 10,000 rounds or 1,000 jobs."""

COST_HEAD = """## What it costs where nothing fails

`make cost` runs this: an all-reduce of two nodes with two ranks each, with `resume` and
without, by two sessions over the same daemons in turns. Medians of each run; the median of the
runs, and their range."""

_COST_HEADINGS = ("size", "runs", "without", "with", "costs")
_HEADINGS = ("fault", "runs", "as expected", "other verdicts", "bits equal", "left behind")
_TIMES = ("detect_seconds", "recover_seconds", "added_seconds", "raised_seconds")
_TIME_HEADINGS = ("fault", "detected", "recovered", "added", "last error")
_SOAK_HEADINGS = ("what", "times", "memory, MB", "descriptors", "threads", "arenas", "left")


def render(
    drills: Mapping[str, Result],
    soaks: Mapping[str, Result],
    costs: Mapping[str, Result] | None = None,
) -> str:
    """The page."""
    results = {**drills, **soaks, **(costs or {})}
    parts = [HEAD]
    if any(result.quick for result in results.values()):
        parts.append(QUICK)
    parts += made_on(results)
    parts += _drills(drills)
    parts += _soaks(soaks)
    parts += _costs(costs or {})
    return "\n\n".join(parts) + "\n"


def _drills(drills: Mapping[str, Result]) -> Iterator[str]:
    yield "## Drills"
    failed = [name for name, result in drills.items() if result.failed]
    if failed:
        yield f"**These gave nothing, or not all: {', '.join(failed)}.**"
    whole = {name: result.rows for name, result in drills.items() if result.rows}
    yield table(_HEADINGS, (_verdicts(name, rows) for name, rows in whole.items()))
    yield table(_TIME_HEADINGS, (_times(name, rows) for name, rows in whole.items()))


def _verdicts(fault: str, rows: Sequence[Row]) -> tuple[str, ...]:
    counts = Counter(str(row["verdict"]) for row in rows)
    wanted = expected(fault)
    others = ", ".join(f"{count} {name}" for name, count in counts.items() if name != wanted)
    return (
        fault,
        str(len(rows)),
        f"{counts[wanted]} {wanted}",
        f"**{others}**" if others else "none",
        str(sum(row["bits_equal"] is True for row in rows)),
        str(sum(bool(row["leftovers"]) for row in rows)),
    )


def _times(fault: str, rows: Sequence[Row]) -> tuple[str, ...]:
    return (fault, *(_spread([row[name] for row in rows]) for name in _TIMES))


def _spread(values: Sequence[float | None]) -> str:
    parts = [percentile(values, part) for part in (0.5, 0.95, 1.0)]
    return (
        " / ".join("" if part is None else f"{part:.2f}" for part in parts).strip(" /") or "-"
    )


def _soaks(soaks: Mapping[str, Result]) -> Iterator[str]:
    if not soaks:
        return
    yield SOAK_HEAD
    failed = [name for name, result in soaks.items() if result.failed]
    if failed:
        yield f"**These failed: {', '.join(failed)}.**"
    rows = [(name, row) for name, result in soaks.items() for row in result.rows]
    yield table(_SOAK_HEADINGS, (_soak(name, row) for name, row in rows))


def _soak(name: str, row: Row) -> tuple[str, ...]:
    growth = (f"{row[kind]:+.2f}" for kind in ("megabytes", "descriptors", "threads", "arenas"))
    return (f"{name}: {row['process']}", f"{row['times']:,}", *growth, str(row["left"]))


def _costs(costs: Mapping[str, Result]) -> Iterator[str]:
    rows = [row for result in costs.values() for row in result.rows]
    if not rows:
        return
    yield COST_HEAD
    yield table(_COST_HEADINGS, (_cost(rows, size) for size in dict.fromkeys(map(_size, rows))))


def _size(row: Row) -> str:
    return str(row["size"])


def _cost(rows: Sequence[Row], size: str) -> tuple[str, ...]:
    runs = [row for row in rows if _size(row) == size]
    ratios = [row["on_seconds"] / row["off_seconds"] - 1 for row in runs]
    off, on = (median([row[key] for row in runs]) for key in ("off_seconds", "on_seconds"))
    return (
        size,
        str(len(runs)),
        f"{1e3 * off:.3g} ms",
        f"{1e3 * on:.3g} ms",
        f"{100 * median(ratios):+.1f} % ({100 * min(ratios):+.1f} to {100 * max(ratios):+.1f})",
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line through them; 0 of fewer than two."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    middle = sum(x for x, _ in points) / len(points)
    level = sum(y for _, y in points) / len(points)
    rise = sum((x - middle) * (y - level) for x, y in points)
    return rise / sum((x - middle) ** 2 for x, _ in points)
