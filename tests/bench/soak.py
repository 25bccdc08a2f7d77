"""`make soak`: rounds, jobs and killed ranks by the thousand on the same daemons: what grows?

Two nodes with one rank each. Writes soak.json, and FAILURES.md anew.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from figures.failures import slope
from gradwire_ops.children import ChildError, exit_on_terminate
from gradwire_ops.drill_job import Ranks
from gradwire_ops.drill_nodes import Nodes, nodes
from gradwire_ops.drill_plan import DrillFlags, DrillPlan, make_plan
from keeping import SOAKS, load, made_now, save, write_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from figures.setting import Row

HERE = Path(__file__).parent
SMALL, LARGE, JOINS, KILLS = (
    "small rounds",
    "rounds of 25 MiB",
    "jobs",
    "jobs with a killed rank",
)
TIMES = {SMALL: 100_000, LARGE: 2_000, JOINS: 1_000, KILLS: 200}
QUICK_TIMES = {SMALL: 2_000, LARGE: 20, JOINS: 10, KILLS: 5}
ELEMENTS = {SMALL: 256, LARGE: 25 << 18, JOINS: 1000, KILLS: 1000}
UNIT = {SMALL: 10_000, LARGE: 10_000, JOINS: 1_000, KILLS: 1_000}
"""Growth is given for so many."""
SAMPLES = 200
WARM_UP = 0.1
START_SECONDS = 60.0
SLOWEST = {SMALL: 0.1, LARGE: 5.0}
"""Seconds that a round may take before it counts as hung."""
FLAGS = DrillFlags("kill-rank", 1, 0, 2, 1, 10, "64KiB", "1,2", "50mbit", 30.0, None)


@dataclass(slots=True)
class Growth:
    """Samples of one process: after how many rounds or jobs it had how much."""

    process: psutil.Process
    samples: list[tuple[int, float, float, float]] = field(default_factory=list)

    def sample(self, done: int) -> None:
        """Look once; a process that has ended stays as it was."""
        try:
            with self.process.oneshot():
                megabytes = self.process.memory_info().rss / 1e6
                threads, files = self.process.num_threads(), self.process.num_fds()
        except psutil.Error:
            return
        self.samples.append((done, megabytes, files, threads))

    def slope(self, column: int, unit: int) -> float:
        """Of one of the figures, for so many rounds or jobs."""
        warm = self.samples[int(len(self.samples) * WARM_UP) :]
        return unit * slope([(sample[0], sample[column]) for sample in warm])


class Soak:
    """One kind of work on daemons that live on."""

    def __init__(
        self, name: str, times: int, daemons: Nodes, memory: Callable[[], int]
    ) -> None:
        self._name = name
        self._times = times
        self._nodes = daemons
        self._memory = memory
        self._daemons = [Growth(psutil.Process(one.pid)) for one in daemons.daemons]
        self._ranks: list[Growth] = []
        self._arenas: list[tuple[float, float]] = []
        self._plan = replace(make_plan(FLAGS), elements=(ELEMENTS[name],))

    def rows(self) -> Iterator[Row]:
        """Do all of it; one row for the daemons, and one for ranks that lived as long."""
        if self._name in SLOWEST:
            self._long_job()
        else:
            for number in range(self._times):
                self._short_job(self._plan, number)
        left = list(self._nodes.leftovers())
        for process, growths in (("daemons", self._daemons), ("ranks", self._ranks)):
            if growths:
                yield self._row(process, growths, len(left))

    def _row(self, process: str, growths: list[Growth], left: int) -> Row:
        unit = UNIT[self._name]
        most = [max(growth.slope(column, unit) for growth in growths) for column in (1, 2, 3)]
        return {
            "process": process,
            "times": self._times,
            "megabytes": most[0],
            "descriptors": most[1],
            "threads": most[2],
            "arenas": unit * slope(self._arenas),
            "left": left,
            "largest_megabytes": max(each[1] for one in growths for each in one.samples),
        }

    def _long_job(self) -> None:
        with Ranks(self._plan, self._nodes.addresses, self._times) as ranks:
            self._ranks = [Growth(psutil.Process(one.pid)) for one in ranks.records]
            every = max(1, self._times // SAMPLES)
            for step in range(0, self._times, every):
                if not ranks.await_step(step, START_SECONDS + every * SLOWEST[self._name]):
                    raise ChildError(f"no step {step}: {ranks.last_words()}")
                self._look(step, [*self._daemons, *self._ranks])
            ranks.await_end(START_SECONDS)
            _require(ranks, [0] * len(ranks.records))

    def _short_job(self, plan: DrillPlan, number: int) -> None:
        kills = self._name == KILLS
        with Ranks(plan, self._nodes.addresses, 1_000_000 if kills else 1) as ranks:
            if kills:
                if not ranks.await_step(0, START_SECONDS):
                    raise ChildError(f"job {number} did not begin: {ranks.last_words()}")
                ranks.kill(number % 2)
            ranks.await_end(START_SECONDS)
            wanted = [-9 if kills and one == number % 2 else 0 for one in range(2)]
            _require(ranks, wanted)
        self._look(number, self._daemons)

    def _look(self, done: int, growths: list[Growth]) -> None:
        for growth in growths:
            growth.sample(done)
        self._arenas.append((done, self._memory()))


def _require(ranks: Ranks, codes: list[int]) -> None:
    found = [one.exit_code for one in ranks.records]
    if found != codes:
        raise ChildError(f"exit codes {found}, expected {codes}\n{ranks.last_words()}")


def main() -> int:
    """Run and render. 1 where a job failed, 2 for wrong usage."""
    arguments = _arguments()
    times = QUICK_TIMES if arguments.quick else TIMES
    store = arguments.folder / SOAKS
    results = load(store)
    good = True
    with exit_on_terminate(), ExitStack() as stack:
        left: list[str] = []
        plan = make_plan(FLAGS)
        daemons = stack.enter_context(nodes(plan, left, relayed=False))
        for name in arguments.only or list(TIMES):
            began = time.monotonic()
            rows: list[Row] = []
            try:
                rows += Soak(name, times[name], daemons, daemons.count_arenas).rows()
            except ChildError as error:
                print(f"{name}: {error}", file=sys.stderr)
            good = good and bool(rows) and not any(row["left"] for row in rows)
            results[name] = made_now(rows, quick=arguments.quick, failed=not rows)
            save(store, results)
            print(f"{name}: {time.monotonic() - began:.0f} s, {rows}", file=sys.stderr)
    for one in left:
        print(f"left behind: {one}", file=sys.stderr)
    print(f"written: {write_page(arguments.folder)}", file=sys.stderr)
    return 0 if good and not left else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(TIMES))
    parser.add_argument("--quick", action="store_true", help="a little: does it work at all")
    parser.add_argument("--folder", type=Path, default=HERE, help="of what is written")
    arguments = parser.parse_args()
    if arguments.quick and arguments.folder == HERE:
        parser.error("--quick wants a --folder: its figures are none to keep")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
