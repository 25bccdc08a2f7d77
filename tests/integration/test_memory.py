"""A daemon's memory follows what is in flight, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire import Session

RunInThreads = Callable[..., list[None]]

CHUNK_BYTES = 2 << 20
SLOTS = 8
ROUNDS = 10_000
WARM_UP_ROUNDS = 2_000
LEAK_BYTES = 2 << 20
"""A leak of one small object a round would be more than this."""

FRAGMENTS_BYTES = 10 << 20
"""What a heap may grow by while the jobs' objects find their places; an arena is more."""

SETTLING_LOOKS = 16
SETTLING_SECONDS = 0.2

JOBS = 20

LARGE_BYTES = 256 << 20


@pytest.fixture
def two_nodes() -> Iterator[Cluster]:
    settings = {"GRADWIRE_CHUNK_BYTES": str(CHUNK_BYTES), "GRADWIRE_SLOTS": str(SLOTS)}
    with cluster(2, settings) as nodes:
        yield nodes


@pytest.fixture
def private_bytes(two_nodes: Cluster) -> Callable[[], int]:
    """What the daemons have to themselves: resident, and not shared with the ranks."""
    processes = [psutil.Process(daemon.pid) for daemon in two_nodes.daemons]

    def measure() -> int:
        return max(memory.rss - memory.shared for memory in map(_memory, processes))

    return measure


def open_files(nodes: Cluster) -> int:
    """Open files of all daemons, once those of the job's last connections are closed."""
    processes = [psutil.Process(daemon.pid) for daemon in nodes.daemons]
    return settled(lambda: sum(process.num_fds() for process in processes))


def arenas_mapped(nodes: Cluster) -> int:
    """Arenas in the daemons' memory, once the last job has said its goodbyes."""
    maps = [Path(f"/proc/{daemon.pid}/maps") for daemon in nodes.daemons]
    return settled(lambda: sum(each.read_text().count("shm/gradwire-") for each in maps))


def settled(measure: Callable[[], int]) -> int:
    """The least that is measured within a few seconds: a goodbye may take two."""
    least = measure()
    for _ in range(SETTLING_LOOKS):
        time.sleep(SETTLING_SECONDS)
        least = min(least, measure())
    return least


def _memory(process: psutil.Process) -> psutil._ntuples.pmem:
    return process.memory_info()


def test_ten_thousand_rounds_leave_nothing_behind(
    two_nodes: Cluster,
    private_bytes: Callable[[], int],
    threads_over: Callable[[Sequence[str]], RunInThreads],
) -> None:
    sizes: list[int] = []

    def work(session: Session) -> None:
        tensor = torch.ones(16)
        for round_ in range(ROUNDS):
            session.all_reduce(tensor).wait()
            if session.rank == 0 and round_ in (WARM_UP_ROUNDS, ROUNDS - 1):
                sizes.append(private_bytes())

    threads_over(two_nodes.addresses)((1, 1), work)
    assert sizes[1] - sizes[0] < LEAK_BYTES


def test_a_large_tensor_takes_no_more_than_three_times_what_is_in_flight(
    two_nodes: Cluster,
    private_bytes: Callable[[], int],
    threads_over: Callable[[Sequence[str]], RunInThreads],
) -> None:
    before = private_bytes()
    peaks = [before]

    def work(session: Session) -> None:
        tensor = torch.ones(LARGE_BYTES // 4)
        for _ in range(2):
            future = session.all_reduce(tensor)
            while session.rank == 0 and not future.done():
                peaks.append(private_bytes())
            future.wait()

    threads_over(two_nodes.addresses)((1, 1), work)
    in_flight = 2 * SLOTS * CHUNK_BYTES  # own chunks and the peer's
    assert max(peaks) - before < 3 * in_flight


def test_a_job_gives_its_memory_back(
    two_nodes: Cluster,
    private_bytes: Callable[[], int],
    threads_over: Callable[[Sequence[str]], RunInThreads],
) -> None:
    def work(session: Session) -> None:
        session.all_reduce(torch.ones(1 << 20)).wait()

    run = partial(threads_over(two_nodes.addresses), (1, 1), work)
    for _ in range(10):
        run()
    before, files = private_bytes(), open_files(two_nodes)
    for _ in range(JOBS):
        run()
    assert private_bytes() - before < FRAGMENTS_BYTES
    # One a job would be a leak; one or two may be connections that are just being closed.
    assert open_files(two_nodes) - files < JOBS // 4
    assert arenas_mapped(two_nodes) == 0
