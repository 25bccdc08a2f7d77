"""RESULTS.md: the whole of it, from what was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from figures import tables
from figures.catalogue import (
    AIMS,
    CORES,
    LARGE,
    LOOPBACK,
    ONE_NODE,
    SETTINGS,
    TRAINING,
    URGENT,
    WORKERS,
)
from figures.machine import Machine
from figures.setting import Benchmark, Cell, Program
from figures.verdict import row_of, verdicts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from figures.setting import Row
    from figures.verdict import Rows


@dataclass(frozen=True, slots=True)
class Result:
    """What one setting gave."""

    rows: Sequence[Row]
    date: str
    machine: Machine
    quick: bool = False
    failed: bool = False


HEAD = """# Results

`make bench` runs all of this and writes this file anew; `make bench ARGS="--only far"` is one
setting. Times are medians of rounds in which ours and gloo take turns, of the slowest rank,
sums of fp32; p50 and p99 are of single calls on rank 0, up to 1 MiB. "x gloo" is gloo's time
over ours: below 1 gloo is quicker. The limit is what no exact all-reduce can beat on these
links, from what a plain socket carried just before; efficiency is the limit over our time.
CPU seconds are of one daemon, for 1e9 bytes of tensor. All nodes, daemons and ranks share
this one machine."""

QUICK = "**A quick run: one round, small tensors. These figures mean nothing.**"

CORES_NOTE = """GB/s per core: the speed over the cores that a daemon may use. GB per CPU
second: what it makes of those it does use. The ranks run on the same cores."""

SOCKET_NOTE = """The control sends as many bytes one way over one plain TCP socket on
loopback, and counts the CPU of both ends; a daemon sends each byte of the tensor once, and
receives it once."""

WORKERS_NOTE = """Both daemons, all their workers and both ranks share two cores, which one
worker a node keeps busy already: what a worker gains on a core of its own can't be seen here.
What can be seen is what it costs: the CPU seconds for a gigabyte."""

URGENT_NOTE = """The same layers as above, at {slow} ms. In the first loop each gradient is
handed over when it is there and waited for when the next forward pass needs its layer's
weights; the first half of the layers is urgent, or nothing is. DDP hands its buckets over in
the order in which the backward pass makes them and waits for all before the step: no order
gains it anything."""

TRAINING_NOTE = """**No accelerator took part, and no layer computed anything.** A layer
sleeps: {slow} ms backward and half of that forward ("slow"), or {fast} ms ("fast"). That
stands for an accelerator, because two cores that also run every daemon and every rank would
otherwise time themselves. Everything else is real: 20 layers of 1280 x 1024 parameters (26.2
million, 105 MB of gradients), DDP with buckets of 5 MiB, the gradients, the copies, SGD on
the CPU, links of 1 Gbit/s. A rank is said to take {batch} samples a step. One node's rate is
the better of ours and gloo's."""

OVERLAP_NOTE = """The same steps (P08). Compute: the step without communication.
Communication: what it adds to a step whose layers take no time. First bucket: from the start
of the backward pass until DDP hands it to us; last layer: until the backward pass of the
layer that comes last begins."""


def render(results: Mapping[str, Result]) -> str:
    """The file, from whichever settings were measured."""
    rows = {name: result.rows for name, result in results.items()}
    parts = [
        HEAD,
        *([QUICK] if any(result.quick for result in results.values()) else []),
        *made_on(results),
        *_failures(results),
        *_aims(rows),
        *_sections(rows),
    ]
    return "\n\n".join(parts) + "\n"


def made_on(results: Mapping[str, Result]) -> Iterator[str]:
    """Dates, machines and commits."""
    yield "## Made on"
    dates = sorted({result.date for result in results.values()})
    lines = [("date", " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never")]
    for field in fields(Machine):
        values = dict.fromkeys(
            str(getattr(result.machine, field.name)) for result in results.values()
        )
        lines.append((field.name.replace("_", " "), " and ".join(values)))
    yield "\n".join(("| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in lines)))


def _failures(results: Mapping[str, Result]) -> Iterator[str]:
    failed = [name for name, result in results.items() if result.failed]
    if failed:
        yield f"**These settings failed, and have no figures: {', '.join(failed)}.**"
    missing = [setting.name for setting in SETTINGS if setting.name not in results]
    if missing:
        yield f"Not run: {', '.join(missing)}."


def _aims(rows: Rows) -> Iterator[str]:
    found = list(verdicts(SETTINGS, AIMS, rows))
    reached = sum(one.reached is True for one in found)
    missed = sum(one.reached is False for one in found)
    yield "## What was aimed for"
    yield f"{reached} reached, {missed} missed, {len(found) - reached - missed} not measured."
    yield tables.aims(found)
    yield "## Where gloo is quicker"
    benchmarks = [each for each in SETTINGS if isinstance(each, Benchmark)]
    yield "\n".join(tables.losses(benchmarks, rows)) or "In no row below."


def _sections(rows: Rows) -> Iterator[str]:
    for section in dict.fromkeys(setting.section for setting in SETTINGS):
        members = [each for each in SETTINGS if each.section == section]
        benchmarks = [each for each in members if isinstance(each, Benchmark)]
        programs = [each for each in members if isinstance(each, Program)]
        if not any(each.name in rows for each in members):
            continue
        yield f"## {section}"
        if benchmarks:
            yield tables.benchmarks(benchmarks, rows)
        yield from _beside(section, programs, rows)


def _beside(section: str, programs: Sequence[Program], rows: Rows) -> Iterator[str]:
    """What a section has beside its benchmarks."""
    match section:
        case _ if section == ONE_NODE:
            yield tables.copies(programs[0], rows, row_of(rows, Cell("one-node", LARGE)))
        case _ if section == LOOPBACK:
            yield SOCKET_NOTE
            yield tables.sockets(programs[0], rows, rows.get("growing", ()))
        case _ if section == CORES:
            yield CORES_NOTE
            yield tables.cores(((1, "cores-1"), (2, "cores-2")), rows)
        case _ if section == WORKERS:
            yield WORKERS_NOTE
        case _ if section == URGENT:
            yield URGENT_NOTE.format(slow=20)
            yield tables.urgent(programs[0], rows)
        case _ if section == TRAINING:
            yield TRAINING_NOTE.format(slow=20, fast=4, batch=tables.BATCH)
            yield tables.training(programs, rows)
            yield OVERLAP_NOTE
            yield tables.overlap(programs, rows)
