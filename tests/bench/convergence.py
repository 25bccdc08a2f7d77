"""`make convergence`: train over every wire, and write CONVERGENCE.md and its pictures.

What a training gives is kept in convergence.json at once, so that a run that was cut short can
be continued, or rendered as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from curves.catalogue import SUBJECTS, WIRES, Run
from curves.plots import draw
from curves.rank import Order
from curves.report import render
from figures.machine import this_machine
from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.cluster import cluster
from gradwire_ops.job import Job, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from curves.catalogue import Subject

HERE = Path(__file__).parent
RANKS_PER_NODE = (2, 2)
SEEDS = 3
TIMEOUT_SECONDS = 3600.0


def main() -> int:
    """Train and render. 1 where a training failed, 2 for wrong usage."""
    arguments = _arguments()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    store = arguments.folder / "convergence.json"
    kept = arguments.render or arguments.resume or arguments.only or arguments.wire
    runs = _load(store) if kept else []
    chosen = [] if arguments.render else _chosen(arguments, runs)
    runs = [run for run in runs if (run.subject, run.wire) not in chosen]
    failed: list[str] = []
    with exit_on_terminate():
        for subject in SUBJECTS:
            wires = [wire for name, wire in chosen if name == subject.name]
            for run in _trainings(subject, wires, arguments, failed):
                runs.append(run)
                _save(store, runs)
    _write(arguments, runs, failed)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="convergence", description=__doc__)
    subjects = [subject.name for subject in SUBJECTS]
    wires = [wire.name for wire in WIRES]
    parser.add_argument("--only", action="append", choices=subjects, help="this subject")
    parser.add_argument("--wire", action="append", choices=wires, help="this wire")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="so many of each")
    parser.add_argument("--steps", type=int, help="of each training; few: does it work at all")
    parser.add_argument("--resume", action="store_true", help="run what is not there yet")
    parser.add_argument("--render", action="store_true", help="run nothing, write the page")
    parser.add_argument("--folder", type=Path, default=HERE, help="of all that is written")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.folder == HERE:
        parser.error("--steps wants a --folder: its figures are none to keep")
    return arguments


def _chosen(arguments: argparse.Namespace, done: Sequence[Run]) -> list[tuple[str, str]]:
    """What is asked for, of subjects and wires, and not there yet where that matters."""
    there = Counter((run.subject, run.wire) for run in done)
    return [
        (subject.name, wire.name)
        for subject in SUBJECTS
        for wire in WIRES
        if arguments.only is None or subject.name in arguments.only
        if arguments.wire is None or wire.name in arguments.wire
        if not arguments.resume or there[subject.name, wire.name] < arguments.seeds
    ]


def _trainings(
    subject: Subject, wires: list[str], arguments: argparse.Namespace, failed: list[str]
) -> Iterator[Run]:
    """Over these wires, seed by seed; a wire that fails is noted, and the next one's turn."""
    if arguments.steps is not None:
        subject = replace(subject, steps=arguments.steps)
    while wires:
        left = dict.fromkeys(wires, arguments.seeds)
        try:
            for run in _train(subject, wires, arguments.seeds):
                left[run.wire] -= 1
                yield run
        except ChildError as error:
            _say(f"    failed: {error}")
        unfinished = [wire for wire in wires if left[wire]]
        failed += [f"{subject.name} over {wire}" for wire in unfinished[:1]]
        wires = unfinished[1:]


def _train(subject: Subject, wires: Sequence[str], seeds: int) -> Iterator[Run]:
    """In one job: what starts it takes as long as a training. Raises ChildError."""
    _say(f"{subject.name}, {seeds} x {subject.steps} steps each: {', '.join(wires)}")
    order = Order(subject.name, list(wires), list(range(seeds)), subject.steps)
    job = Job("curves.rank", (json.dumps(asdict(order)),), RANKS_PER_NODE, TIMEOUT_SECONDS)
    with (
        cluster(len(RANKS_PER_NODE)) as nodes,
        running(job, nodes.daemons, nodes.addresses) as lines,
    ):
        for _, line in lines:
            run = Run(**json.loads(line))
            accuracy = "" if run.accuracy is None else f", accuracy {run.accuracy:.2%}"
            _say(
                f"    {run.wire}, seed {run.seed}: loss {run.loss:.4f}{accuracy},"
                f" {run.bytes_per_step:.0f} bytes a step, {run.seconds:.1f} s"
            )
            yield run


def _write(arguments: argparse.Namespace, runs: list[Run], failed: list[str]) -> None:
    folder: Path = arguments.folder
    date = datetime.now(UTC).date().isoformat()
    short = arguments.steps is not None
    page = folder / "CONVERGENCE.md"
    page.write_text(render(runs, failed, date, this_machine(), short=short))
    for subject in SUBJECTS:
        if any(run.subject == subject.name for run in runs):
            draw(subject, runs, folder / f"CONVERGENCE-{subject.name}.png")
    _say(f"written: {page}")


def _load(store: Path) -> list[Run]:
    if not store.exists():
        return []
    return [Run(**fields) for fields in json.loads(store.read_text())]


def _save(store: Path, runs: list[Run]) -> None:
    """Whole or not at all: this may be ended at any time."""
    fresh = store.with_suffix(".new")
    fresh.write_text(json.dumps([asdict(run) for run in runs]))
    fresh.replace(store)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
