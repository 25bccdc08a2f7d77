"""`gradwire bench`: all-reduces of many sizes on loopback, ours beside gloo."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from gradwire_ops import query
from gradwire_ops.bench_plan import Plan, PlanError, PlanFlags, make_plan
from gradwire_ops.bench_row import Row
from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.cluster import cluster
from gradwire_ops.job import Job, running
from gradwire_ops.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

TIMEOUT_SECONDS = 3600.0
LOCAL = "local"
"""Schedule of a job on a single node: nothing is sent."""


def run(flags: PlanFlags, *, as_json: bool) -> int:
    """Measure and print. 1 where it failed, or the results were wrong; 2 for wrong flags."""
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        plan = make_plan(flags)
    except PlanError as error:
        progress.print(str(error), style="red", markup=False)
        return 2
    rows: list[Row] = []
    try:
        with exit_on_terminate(), closing(_measure(plan, progress)) as measured:
            for row in measured:
                rows.append(row)
                _show_progress(progress, row, len(plan.sizes) - len(rows))
    except ChildError as error:
        progress.print(f"the benchmark failed: {error}", style="red", markup=False)
        return 1
    if as_json:
        Console().print_json(data=[row.to_dict() for row in rows])
    else:
        Console().print(_table(plan, rows))
    return 0


def _measure(plan: Plan, progress: Console) -> Generator[Row, None, None]:
    job = Job(
        "gradwire_ops.bench_rank",
        (plan.to_json(),),
        (plan.ranks_per_node,) * plan.nodes,
        TIMEOUT_SECONDS,
    )
    progress.print(f"daemons: {plan.nodes}, ranks: {plan.ranks}")
    with cluster(plan.nodes, {"GRADWIRE_SCHEDULE": plan.schedule}) as nodes:
        chunk_bytes = query.describe(nodes.addresses[0]).chunk_bytes
        with running(job, nodes.daemons, nodes.addresses) as lines:
            for _, line in lines:
                measured = json.loads(line)
                yield Row(
                    **measured,
                    nodes=plan.nodes,
                    ranks_per_node=plan.ranks_per_node,
                    schedule=_schedule(plan, min(measured["size_bytes"], chunk_bytes)),
                    wire="exact",
                    transport="grpc" if plan.nodes > 1 else LOCAL,
                    dtype=plan.dtype,
                )


def _schedule(plan: Plan, chunk_bytes: int) -> str:
    """Name of the schedule that the daemons use for a chunk of this size."""
    if plan.nodes == 1:
        return LOCAL
    if plan.schedule != "auto":
        return plan.schedule
    from gradwire_server.reduce.choose import NAMES, choose

    return NAMES[choose(chunk_bytes, plan.nodes)]


def _show_progress(progress: Console, row: Row, left: int) -> None:
    progress.print(
        f"  {format_size(row.size_bytes)}: {_time(row.seconds)}, gloo {_time(row.gloo_seconds)}"
        f", {row.speedup_vs_gloo:.2f} x; sizes left: {left}"
    )


def _table(plan: Plan, rows: Sequence[Row]) -> Table:
    layout = f"{plan.nodes} x {plan.ranks_per_node} ranks, {rows[0].path}"
    table = Table(
        title=f"{plan.op} of {plan.dtype}, {layout}", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for heading in ("size", "schedule", "time", "algbw", "busbw", "gloo", "speed-up"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            format_size(row.size_bytes),
            row.schedule,
            _time(row.seconds),
            _rate(row.algbw_bytes_per_second),
            _rate(row.busbw_bytes_per_second),
            _time(row.gloo_seconds),
            f"{row.speedup_vs_gloo:.2f} x",
        )
    return table


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _rate(bytes_per_second: float) -> str:
    if bytes_per_second < 1e9:
        return f"{bytes_per_second / 1e6:.1f} MB/s"
    return f"{bytes_per_second / 1e9:.2f} GB/s"
