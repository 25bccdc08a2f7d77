"""`make observe`: what it costs to be looked at, at small rounds; writes OBSERVING.md.

One job for each layout, whose rounds take turns in blocks: nobody looks; the metrics are
scraped and the status page asks, each once a second; a trace is recorded. Where one node's
ranks add up by themselves, also with the ledger's diary left out: its whole cost there.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.request import ProxyHandler, build_opener

import torch
import torch.distributed as dist

import gradwire
from figures.machine import this_machine
from gradwire_ops import query
from gradwire_ops.children import exit_on_terminate
from gradwire_ops.cluster import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.queues import Queue

PAGE = Path(__file__).parent / "OBSERVING.md"
BLOCK_SECONDS = 2.0
PATIENCE_SECONDS = 600
LAYOUTS = ((1, 4, "64 KiB"), (2, 2, "64 KiB"), (2, 2, "1 MiB"))
ELEMENTS = {"64 KiB": 16 << 10, "1 MiB": 256 << 10}
NAMES = ("metrics", "status.json")
QUIET, LOOKED_AT, TRACED, NO_LEDGER = "nobody looks", "scrape and page", "trace", "no ledger"

without_proxy = build_opener(ProxyHandler({})).open

HEAD = """# What it costs to be looked at

`make observe` measures this and writes this file. Rounds of fp32, whose modes take turns
in blocks of two seconds, {blocks} of each; the median of a block's rounds, and of these
the median. "More" is against the same job while nobody looks, block by block; the quartiles
say how far to trust it.

| nodes x ranks | size | mode | median of a round, us | more | quartiles |
|---|---|---|---|---|---|
"""


class NoDiary:
    """Instead of a chain's diary; what the daemon needs of it, it does not get."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


def main() -> int:
    """Run and render."""
    parser = argparse.ArgumentParser(prog="observing_cost", description=__doc__)
    parser.add_argument("--blocks", type=int, default=10, help="of each mode")
    parser.add_argument("--page", type=Path, default=PAGE, help="what is written")
    arguments = parser.parse_args()
    text = HEAD.format(blocks=arguments.blocks)
    with exit_on_terminate():
        for nodes, ranks, size in LAYOUTS:
            modes = [QUIET, LOOKED_AT, TRACED] + [NO_LEDGER] * (nodes == 1)
            blocks = _run(nodes, ranks, size, modes * arguments.blocks)
            text += "".join(_rows(f"{nodes} x {ranks} | {size}", modes, blocks))
    machine = this_machine()
    text += f"\n{machine.cpu}, {machine.cores} cores, gradwire {machine.gradwire}.\n"
    arguments.page.write_text(text)
    print(f"written: {arguments.page}", file=sys.stderr)
    return 0


def _rows(layout: str, modes: Sequence[str], blocks: Sequence[float]) -> list[str]:
    """Blocks are medians, one mode after the other, over and over."""
    by_mode = {mode: blocks[place :: len(modes)] for place, mode in enumerate(modes)}
    rows = []
    for mode, times in by_mode.items():
        pairs = [one / quiet - 1 for one, quiet in zip(times, by_mode[QUIET], strict=True)]
        low, middle, high = statistics.quantiles(pairs, n=4)
        more = "" if mode == QUIET else f"{middle:+.1%}"
        spread = "" if mode == QUIET else f"{low:+.1%} to {high:+.1%}"
        median = f"{1e6 * statistics.median(times):.0f}"
        rows.append(f"| {layout} | {mode} | {median} | {more} | {spread} |\n")
    return rows


def _run(nodes: int, ranks: int, size: str, modes: Sequence[str]) -> list[float]:
    context = multiprocessing.get_context("spawn")
    results, looks = context.Queue(), context.Queue()
    world = nodes * ranks
    with cluster(nodes, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as daemons:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job = Job(world, store.port, daemons.addresses, ELEMENTS[size], modes)
        processes = [
            context.Process(target=_observe, args=(daemons.addresses, looks), daemon=True),
            *(
                context.Process(target=_rank, args=(rank, job, looks, results), daemon=True)
                for rank in range(world)
            ),
        ]
        for process in processes:
            process.start()
        blocks: list[float] = results.get(timeout=PATIENCE_SECONDS)
        looks.put("")
        for process in processes:
            process.join(PATIENCE_SECONDS)
    return blocks


class Job(NamedTuple):
    """What its ranks are told."""

    world: int
    port: int
    addresses: Sequence[str]
    elements: int
    modes: Sequence[str]


def _rank(rank: int, job: Job, looks: Queue[str], results: Queue[list[float]]) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", job.port, is_master=False)
    daemon = job.addresses[rank * len(job.addresses) // job.world]
    seat = gradwire.connect(store=store, rank=rank, world_size=job.world, daemon=daemon)
    medians = []
    with seat as session:
        for mode in [QUIET, *job.modes]:
            if rank == 0:
                looks.put(mode)
            medians.append(_block(session, job.elements, leave_out=mode == NO_LEDGER))
    if rank == 0:
        results.put(medians[1:])


def _block(session: gradwire.Session, elements: int, *, leave_out: bool) -> float:
    """Median seconds of a block's rounds; rank 0 says when it ends, in what it brings."""
    chain: Any = session._ways._ways[False][0].pipeline._carrier  # noqa: SLF001 - to leave a part of it out
    diary = chain._diary  # noqa: SLF001
    if leave_out:
        chain._diary = NoDiary()  # noqa: SLF001
    times, began = [], time.monotonic()
    tensor, going = torch.ones(elements), True
    while going:
        more = session.rank or time.monotonic() - began < BLOCK_SECONDS
        tensor.fill_(1.0 if more else 0.0)
        start = time.perf_counter()
        session.all_reduce(tensor, "sum").wait()
        times.append(time.perf_counter() - start)
        going = tensor[0].item() == session.world_size
    chain._diary = diary  # noqa: SLF001
    session.all_reduce(torch.ones(1)).wait()
    return statistics.median(times)


def _observe(addresses: Sequence[str], looks: Queue[str]) -> None:
    """As somebody else's process does; until it is told to look at nothing."""
    pages = [query.status(each).metrics for each in addresses]
    while mode := looks.get():
        if mode == TRACED:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda each: query.trace(each, BLOCK_SECONDS - 0.1), addresses))
        elif mode == LOOKED_AT:
            for _ in range(int(BLOCK_SECONDS)):
                for url in (f"http://{page}/{name}" for page in pages for name in NAMES):
                    with without_proxy(url) as answer:
                        answer.read()
                time.sleep(0.9)


if __name__ == "__main__":
    sys.exit(main())
