"""A daemon that reads nothing for a while: what waits for it waits in the ranks' tensors."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import psutil
import pytest
import torch
import torch.distributed as dist

from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire import Session

InProcesses: TypeAlias = Callable[..., list[Any]]

CHUNK_BYTES, SLOTS = 2 << 20, 4
IN_FLIGHT_BYTES = SLOTS * CHUNK_BYTES
MOST_TIMES_IN_FLIGHT = 6
"""For a daemon, which has its own chunks and the peer's: three times each."""
MOST_OF_A_RANK = 1
"""A rank has only what it had before; what is under way lies in the arena."""
STOPPED_SECONDS = 3.0
SAMPLE_SECONDS = 0.1
BUCKETS, BUCKET_ELEMENTS = 20, 1_562_500
"""Of four ranks together 500 MB."""


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    settings = {"GRADWIRE_CHUNK_BYTES": str(CHUNK_BYTES), "GRADWIRE_SLOTS": str(SLOTS)}
    with cluster(2, settings) as running:
        yield running


class Watch:
    """Samples what processes have to themselves, until it is left."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._before = self._private_bytes()
        self._most = list(self._before)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    @property
    def growth(self) -> int:
        """Of the process that grew most, at its peak."""
        return max(now - then for now, then in zip(self._most, self._before, strict=True))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._most = list(map(max, self._most, self._private_bytes()))

    def _private_bytes(self) -> list[int]:
        memories = [process.memory_info() for process in self._processes]
        return [memory.rss - memory.shared for memory in memories]


def push(session: Session, here: int, there: int) -> tuple[int, bool]:
    """The growth of this rank, with the first also of the daemons; and whether the last bucket
    was back at the end of the time in which the first had stopped the daemon `there`."""
    first = session.rank == 0
    buckets = [torch.full((BUCKET_ELEMENTS,), session.rank + 1.0) for _ in range(BUCKETS)]
    for _ in range(3):
        session.all_reduce(torch.zeros(BUCKET_ELEMENTS)).wait()
    with Watch([os.getpid(), *([here, there] if first else [])]) as watch:
        futures = [session.all_reduce(buckets[0])]
        futures[0].wait()
        # It is back everywhere: the ranks of the daemon that stops push, too.
        dist.barrier()
        if first:
            os.kill(there, signal.SIGSTOP)
        try:
            futures += [session.all_reduce(bucket) for bucket in buckets[1:]]
            time.sleep(STOPPED_SECONDS)
            back = futures[-1].done()
        finally:
            if first:
                os.kill(there, signal.SIGCONT)
        results = [future.wait() for future in futures]
    for result in results:
        assert torch.equal(result, torch.full((BUCKET_ELEMENTS,), 2.5))
    return watch.growth, back


@pytest.mark.case("P06")
def test_memory_stays_bounded_while_a_daemon_is_stopped_and_then_all_arrives(
    nodes: Cluster, processes_over: Callable[[Sequence[str]], InProcesses]
) -> None:
    here, there = (daemon.pid for daemon in nodes.daemons)
    results = processes_over(nodes.addresses)((2, 2), push, here, there)
    daemons, *ranks = [growth for growth, _ in results]
    assert daemons < MOST_TIMES_IN_FLIGHT * IN_FLIGHT_BYTES
    assert max(ranks) < MOST_OF_A_RANK * IN_FLIGHT_BYTES
    _, back = results[0]
    assert not back, "the daemon was stopped in time"
