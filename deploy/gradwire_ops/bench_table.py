"""A benchmark's findings, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from gradwire_ops.lab_plan import format_rate as format_link
from gradwire_ops.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradwire_ops.bench_plan import Plan
    from gradwire_ops.bench_row import Row

_HEADINGS = ("size", "schedule", "time", "algbw", "busbw", "gloo", "speed-up")
_LAB_HEADINGS = ("limit", "efficiency")


def table(plan: Plan, rows: Sequence[Row]) -> Table:
    """One line for each size; in a laboratory with what the links allow."""
    headings = (*_HEADINGS, *_LAB_HEADINGS) if plan.lab else _HEADINGS
    result = Table(title=_title(plan, rows[0]), box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(*_cells(row), *(_lab_cells(row) if plan.lab else ()))
    return result


def _title(plan: Plan, row: Row) -> str:
    layout = f"{plan.nodes} x {plan.ranks_per_node} ranks, {row.measured.path}"
    layout += ", process group" if plan.path == "pg" else ""
    title = f"{plan.op} of {plan.dtype}, {layout}"
    if plan.lab is None:
        return title
    links = ", ".join(dict.fromkeys(map(format_link, plan.lab.all_rates)))
    delay = f", round trip + {format_time(plan.lab.delay_seconds)}"
    return f"{title}, links: {links}{delay if plan.lab.delay_seconds else ''}"


def _cells(row: Row) -> Iterator[str]:
    yield format_size(row.measured.size_bytes)
    yield row.schedule
    yield format_time(row.measured.seconds)
    yield format_rate(row.algbw_bytes_per_second)
    yield format_rate(row.busbw_bytes_per_second)
    yield format_time(row.measured.gloo_seconds)
    yield f"{row.speedup_vs_gloo:.2f} x"


def _lab_cells(row: Row) -> Iterator[str]:
    yield "none" if row.limit_seconds is None else format_time(row.limit_seconds)
    yield "" if row.efficiency is None else f"{row.efficiency:.0%}"


def format_time(seconds: float) -> str:
    """In milliseconds."""
    return f"{seconds * 1e3:.2f} ms"


def format_rate(bytes_per_second: float) -> str:
    """In MB/s, or GB/s from one on."""
    if bytes_per_second < 1e9:
        return f"{bytes_per_second / 1e6:.1f} MB/s"
    return f"{bytes_per_second / 1e9:.2f} GB/s"
