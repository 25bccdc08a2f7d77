"""Large tensors are not slower than small ones, and one core is enough for right results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import pytest
import torch

from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire import Session

InProcesses: TypeAlias = Callable[..., list[Any]]
InThreads: TypeAlias = Callable[..., list[Any]]

MB = 1_000_000
SIZES = (1 * MB, 10 * MB, 100 * MB)
REPEATS = 4


def speeds(session: Session) -> list[float]:
    """Bytes per second at best, for each size."""
    best = []
    for size in SIZES:
        seconds = []
        for _ in range(REPEATS):
            tensor = torch.full((size // 4,), session.rank + 1.0)
            began = time.perf_counter()
            session.all_reduce(tensor).wait()
            seconds.append(time.perf_counter() - began)
            assert torch.equal(tensor, torch.full_like(tensor, 1.5))
        best.append(size / min(seconds))
    return best


@pytest.mark.case("P01")
def test_a_hundred_megabytes_go_at_least_half_as_fast_as_ten(in_processes: InProcesses) -> None:
    for _, ten, hundred in in_processes((1, 1), speeds):
        assert hundred >= ten / 2


@pytest.fixture
def one_core() -> Iterator[Cluster]:
    """Two daemons that share a single core."""
    allowed = os.sched_getaffinity(0)
    core = {min(allowed)}
    os.sched_setaffinity(0, core)
    try:
        with cluster(2) as nodes:
            os.sched_setaffinity(0, allowed)
            yield nodes
            for daemon in nodes.daemons:
                for thread in psutil.Process(daemon.pid).threads():
                    assert os.sched_getaffinity(thread.id) == core
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.case("P12")
def test_daemons_on_one_core_give_right_results(
    one_core: Cluster, threads_over: Callable[[Sequence[str]], InThreads]
) -> None:
    def work(session: Session) -> None:
        for size in (20 * MB, 100 * MB):
            pattern = torch.arange(size // 4).remainder(1000).float()
            tensor = pattern + session.rank
            session.all_reduce(tensor).wait()
            assert torch.equal(tensor, pattern + 0.5)

    threads_over(one_core.addresses)((1, 1), work)
