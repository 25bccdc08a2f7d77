"""`gradwire demo`: a real training job over two nodes, beside the same job on gloo."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import time
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.cluster import Cluster, cluster
from gradwire_ops.demo_report import RankReport, check, summarise
from gradwire_ops.epochs import Epochs
from gradwire_ops.job import Job, running
from gradwire_ops.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_ops.demo_report import Check, NodeSummary

RANKS_PER_NODE = (2, 2)
TIMEOUT_SECONDS = 300.0


def run(epochs: int, *, as_json: bool) -> int:
    """Print the demo's findings. 0 where all promises were kept, 2 where it can't be run."""
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    if importlib.util.find_spec("sklearn") is None:
        progress.print(
            "The demo trains on scikit-learn's handwritten digits; scikit-learn is missing.\n"
            "Install it with: pip install 'gradwire\\[demo]'"
        )
        return 2
    began = time.monotonic()
    try:
        with exit_on_terminate():
            progress.print(f"starting {len(RANKS_PER_NODE)} daemons as nodes, on loopback")
            with cluster(len(RANKS_PER_NODE)) as nodes:
                ours = _train("gradwire", epochs, progress, nodes)
            control = _train("gloo", epochs, progress)
    except ChildError as error:
        progress.print(f"the demo failed: {error}", style="red", markup=False)
        return 1
    checks = check(ours, control)
    print_findings = _print_json if as_json else _print_tables
    print_findings(ours, control, checks, time.monotonic() - began)
    return 0 if all(one.kept for one in checks) else 1


def _train(
    over: str, epochs: int, progress: Console, nodes: Cluster | None = None
) -> list[RankReport]:
    """The reports of all ranks, in order of rank."""
    arguments = ("--over", over, "--epochs", str(epochs))
    job = Job("gradwire_ops.trainer", arguments, RANKS_PER_NODE, TIMEOUT_SECONDS)
    reports: dict[int, RankReport] = {}
    daemons = nodes.daemons if nodes else ()
    addresses = nodes.addresses if nodes else ()
    with running(job, daemons, addresses) as lines, Epochs(over, epochs, progress) as shown:
        for rank, line in lines:
            words = json.loads(line)
            if words["event"] == "report":
                reports[rank] = RankReport.parse(words)
            elif rank == 0:
                shown.update(words["epoch"], words["loss"], words["accuracy"])
    missing = sorted(set(range(job.world_size)) - set(reports))
    if missing:
        raise ChildError(f"ranks {missing} ended without a report")
    return [reports[rank] for rank in sorted(reports)]


def _print_json(
    ours: Sequence[RankReport],
    control: Sequence[RankReport],
    checks: Sequence[Check],
    seconds: float,
) -> None:
    findings = {
        "nodes": [dataclasses.asdict(one) for one in summarise(ours)],
        "gloo": [dataclasses.asdict(one) for one in summarise(control)],
        "checks": [dataclasses.asdict(one) for one in checks],
        "seconds": seconds,
    }
    Console().print_json(data=findings)


def _print_tables(
    ours: Sequence[RankReport],
    control: Sequence[RankReport],
    checks: Sequence[Check],
    seconds: float,
) -> None:
    title = "Handwritten digits: two nodes, two ranks on each"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("over", no_wrap=True)
    for heading in ("node", "accuracy", "loss", "sent", "received", "in comm.", "training"):
        table.add_column(heading, justify="right", no_wrap=True)
    for node in summarise(ours):
        sent, received = (
            format_size(node.wire_bytes_sent),
            format_size(node.wire_bytes_received),
        )
        table.add_row("gradwire", *_learnt(node), sent, received, *_times(node))
    for node in summarise(control):
        table.add_row("gloo", *_learnt(node), "", "", "", _times(node)[1])
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(
        "sent, received: bytes on the wire between the daemons\n"
        "in comm.: from handing a bucket in to its result, summed; overlaps the backward pass\n"
    )
    for one in checks:
        mark = "[green]ok[/]    " if one.kept else "[red]FAILED[/]"
        console.print(f"{mark} {one.promise}: {escape(one.evidence)}")
    console.print(f"done in {seconds:.0f} s")


def _learnt(node: NodeSummary) -> tuple[str, str, str]:
    return str(node.node), f"{node.accuracy:.2%}", f"{node.loss:.3f}"


def _times(node: NodeSummary) -> tuple[str, str]:
    return f"{node.seconds_waiting:.2f} s", f"{node.seconds:.2f} s"
