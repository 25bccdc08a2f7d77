"""`gradwire bench`: all-reduces of many sizes, ours beside gloo, on loopback or in a lab."""

from __future__ import annotations

import json
import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psutil
from rich.console import Console

from gradwire_ops import query
from gradwire_ops.bench_network import Network
from gradwire_ops.bench_plan import Plan, PlanError, PlanFlags, cores_of, make_plan
from gradwire_ops.bench_row import Measurement, Row
from gradwire_ops.bench_table import format_rate, format_time, table
from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.cluster import cluster
from gradwire_ops.job import Job, running
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabError
from gradwire_ops.lab_probe import payload_rate
from gradwire_ops.place import HERE
from gradwire_ops.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from gradwire_ops.cluster import Cluster
    from gradwire_ops.lab import Lab
    from gradwire_ops.place import Place

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
    except (ChildError, LabError) as error:
        progress.print(f"the benchmark failed: {error}", style="red", markup=False)
        return 1
    if as_json:
        Console().print_json(data=[row.to_dict() for row in rows])
    else:
        Console().print(table(plan, rows))
    return 0


def _measure(plan: Plan, progress: Console) -> Generator[Row, None, None]:
    progress.print(f"daemons: {plan.nodes}, ranks: {plan.ranks}")
    with (
        _network(plan, progress) as (places, network),
        _daemons(plan, places) as nodes,
    ):
        chunk_bytes = query.describe(nodes.addresses[0]).chunk_bytes
        job = _job(plan, nodes)
        with running(job, nodes.daemons, nodes.addresses, places) as lines:
            for _, line in lines:
                measured = Measurement(**json.loads(line))
                yield Row(
                    measured,
                    nodes=plan.nodes,
                    ranks_per_node=plan.ranks_per_node,
                    schedule=_schedule(plan, min(measured.size_bytes, chunk_bytes)),
                    wire=plan.wire,
                    transport="grpc" if plan.nodes > 1 else LOCAL,
                    dtype=plan.dtype,
                    op=plan.op,
                    via=plan.path,
                    network=network,
                )


@contextmanager
def _daemons(plan: Plan, places: tuple[Place, ...]) -> Iterator[Cluster]:
    count = plan.daemon_cores
    if count is not None:
        available = sorted(os.sched_getaffinity(0))
        places = tuple(
            place.on_cores(cores_of(node, count, available))
            for node, place in enumerate(places or (HERE,) * plan.nodes)
        )
    settings = {"GRADWIRE_SCHEDULE": plan.schedule}
    if plan.workers is not None:
        settings["GRADWIRE_WORKERS"] = str(plan.workers)
    with cluster(plan.nodes, settings, places) as nodes:
        yield nodes


def _job(plan: Plan, nodes: Cluster) -> Job:
    """The ranks read the daemons' clocks themselves, between their rounds."""
    pids = [pid for daemon in nodes.daemons for pid in _processes(daemon.pid)]
    daemons = json.dumps({"pids": pids, "addresses": nodes.addresses})
    layout = (plan.ranks_per_node,) * plan.nodes
    return Job("gradwire_ops.bench_rank", (plan.to_json(), daemons), layout, TIMEOUT_SECONDS)


def _processes(daemon: int) -> list[int]:
    """A daemon's processes: itself, and its workers."""
    return [daemon, *(child.pid for child in psutil.Process(daemon).children())]


@contextmanager
def _network(
    plan: Plan, progress: Console
) -> Iterator[tuple[tuple[Place, ...], Network | None]]:
    """Where the nodes are, and what lies between them; nothing for loopback."""
    if plan.lab is None:
        yield (), None
        return
    with lab(plan.lab) as net:
        network = Network(plan.lab, _payload_rate(net))
        if network.payload_bytes_per_second is not None:
            rate = format_rate(network.payload_bytes_per_second)
            progress.print(f"a link carries {rate} of a plain socket's payload")
        doubts = network.doubts()
        if doubts:
            progress.print(f"beware: {doubts}", style="yellow", markup=False)
        yield net.places, network


def _payload_rate(net: Lab) -> float | None:
    """Of the slowest node's link, beside the quickest; None where no link has a limit."""
    limited = [node for node, rate in enumerate(net.plan.all_rates) if rate is not None]
    if not limited:
        return None
    slowest = min(limited, key=lambda node: net.plan.all_rates[node] or 0)
    other = max(
        (node for node in range(net.plan.nodes) if node != slowest),
        key=lambda node: net.plan.all_rates[node] or float("inf"),
    )
    return payload_rate(net, slowest, other)


def _schedule(plan: Plan, chunk_bytes: int) -> str:
    """Name of the schedule that the daemons use for a chunk of this size."""
    if plan.nodes == 1:
        return LOCAL
    from gradwire_server.reduce.choose import NAMES, SCHEDULES, choose, choose_lossy

    if plan.is_lossy:
        return NAMES[choose_lossy(plan.nodes, SCHEDULES.get(plan.schedule))]
    if plan.schedule != "auto":
        return plan.schedule
    alike = plan.lab is None or len(set(plan.lab.all_rates)) == 1
    return NAMES[choose(chunk_bytes, plan.nodes, alike=alike)]


def _show_progress(progress: Console, row: Row, left: int) -> None:
    measured = row.measured
    progress.print(
        f"  {format_size(measured.size_bytes)}: {format_time(measured.seconds)}"
        f", gloo {format_time(measured.gloo_seconds)}"
        f", {row.speedup_vs_gloo:.2f} x; sizes left: {left}"
    )
