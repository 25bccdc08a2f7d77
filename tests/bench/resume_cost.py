"""`make cost`: what it costs that nothing is lost, where nothing fails; for FAILURES.md.

Two nodes with two ranks each, and two sessions over the same daemons, one with resume and one
without, which take turns: whatever disturbs the machine disturbs both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.children import exit_on_terminate
from gradwire_ops.cluster import cluster
from keeping import COSTS, made_now, save, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.queues import Queue

    from figures.setting import Row

HERE = Path(__file__).parent
NODES, RANKS = 2, 2
WORLD = NODES * RANKS
RUNS = 5
ROUNDS = {"64KiB": (16 << 10, 1500), "64MiB": (16 << 20, 24)}
"""Elements of fp32, and rounds with each session."""
QUICK_ROUNDS = {"64KiB": (16 << 10, 20), "64MiB": (16 << 20, 2)}
WARM_UP = 3
OFF, ON = 0.0, 30.0
PATIENCE_SECONDS = 600


def main() -> int:
    """Run and render."""
    arguments = _arguments()
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    with exit_on_terminate():
        rows = [row for run in range(RUNS) for row in _run(run, rounds)]
    save(
        arguments.folder / COSTS,
        {"resume": made_now(rows, quick=arguments.quick, failed=False)},
    )
    print(f"written: {write_page(arguments.folder)}", file=sys.stderr)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="resume_cost", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a few rounds: does it work at all"
    )
    parser.add_argument("--folder", type=Path, default=HERE, help="of what is written")
    arguments = parser.parse_args()
    if arguments.quick and arguments.folder == HERE:
        parser.error("--quick wants a --folder: its figures are none to keep")
    return arguments


def _run(number: int, rounds: dict[str, tuple[int, int]]) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with cluster(NODES) as nodes:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        arguments = (store.port, nodes.addresses, rounds, results)
        ranks = [
            context.Process(target=_rank, args=(rank, *arguments), daemon=True)
            for rank in range(WORLD)
        ]
        for rank in ranks:
            rank.start()
        medians = results.get(timeout=PATIENCE_SECONDS)
        for rank in ranks:
            rank.join(PATIENCE_SECONDS)
    return [
        {"run": number, "size": size, "off_seconds": times[OFF], "on_seconds": times[ON]}
        for size, times in medians.items()
    ]


def _rank(
    rank: int,
    port: int,
    addresses: Sequence[str],
    rounds: dict[str, tuple[int, int]],
    results: Queue[dict[str, dict[float, float]]],
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    sessions = {
        resume: gradwire.connect(
            store=dist.PrefixStore(str(resume), store),
            rank=rank,
            world_size=WORLD,
            daemon=addresses[rank // RANKS],
            resume=resume,
        )
        for resume in (OFF, ON)
    }
    medians = {size: _times(sessions, *each) for size, each in rounds.items()}
    if rank == 0:
        results.put(medians)
    for session in sessions.values():
        session.close()


def _times(
    sessions: dict[float, gradwire.Session], elements: int, rounds: int
) -> dict[float, float]:
    """The median seconds of each session's all-reduces."""
    tensor, times = torch.ones(elements), {resume: list[float]() for resume in sessions}
    for number in range(WARM_UP + rounds):
        for resume in (OFF, ON) if number % 2 else (ON, OFF):
            tensor.fill_(1.0)
            # So that all begin together.
            sessions[OFF].all_reduce(torch.ones(1)).wait()
            began = time.perf_counter()
            sessions[resume].all_reduce(tensor, op="sum").wait()
            if number >= WARM_UP:
                times[resume].append(time.perf_counter() - began)
    return {resume: statistics.median(each) for resume, each in times.items()}


if __name__ == "__main__":
    sys.exit(main())
