"""A small model, step after step: nothing grows, and nothing is set up anew."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil
import pytest
import torch

if TYPE_CHECKING:
    from gradwire import Session
    from gradwire_ops.cluster import Cluster

InProcesses: TypeAlias = Callable[..., list[Any]]

ELEMENTS = 25_000
STEPS, WARM_UP_STEPS, LOOK_EVERY = 500, 100, 50
AT_EITHER_END = 100
GROWTH_BYTES = 4 << 20


def sockets(pids: list[int]) -> frozenset[tuple[int, int]]:
    """Established TCP connections whose both ends these processes have, by their ports."""
    ends: Counter[tuple[int, int]] = Counter()
    for pid in pids:
        for each in psutil.Process(pid).net_connections("tcp"):
            if each.status == psutil.CONN_ESTABLISHED and each.raddr:
                low, high = sorted((each.laddr.port, each.raddr.port))
                ends[low, high] += 1
    return frozenset(pair for pair, count in ends.items() if count == 2)


def private_bytes(pids: list[int]) -> list[int]:
    """What each process has to itself: resident, and not shared."""
    memories = [psutil.Process(pid).memory_info() for pid in pids]
    return [memory.rss - memory.shared for memory in memories]


def steps(
    session: Session, daemons: list[int]
) -> tuple[list[float], list[frozenset[tuple[int, int]]], int]:
    """Seconds of each step, the daemons' connections after the warm-up, and what grew most."""
    # The first rank looks after the daemons, too.
    pids = [psutil.Process().pid, *(daemons if session.rank == 0 else [])]
    seconds, connections, before = [], [], private_bytes(pids)
    for step in range(STEPS):
        if step == WARM_UP_STEPS:
            before = private_bytes(pids)
        if step >= WARM_UP_STEPS and step % LOOK_EVERY == 0 and session.rank == 0:
            connections.append(sockets(daemons))
        tensor = torch.full((ELEMENTS,), session.rank + 1.0)
        began = time.perf_counter()
        session.all_reduce(tensor).wait()
        seconds.append(time.perf_counter() - began)
        assert tensor[0].item() == tensor[-1].item() == 2.5
    grown = [now - then for now, then in zip(private_bytes(pids), before, strict=True)]
    return seconds, connections, max(grown)


@pytest.mark.case("P07")
def test_five_hundred_steps_of_a_hundred_kilobytes_are_all_alike(
    in_processes: InProcesses, daemons: Cluster
) -> None:
    pids = [daemon.pid for daemon in daemons.daemons[:2]]
    results = in_processes((2, 2), steps, pids)
    _, connections, _ = results[0]
    assert connections[0]
    assert set(connections) == {connections[0]}, "the same ones, not only as many"
    for seconds, _, grown in results:
        assert grown < GROWTH_BYTES
        first, last = seconds[:AT_EITHER_END], seconds[-AT_EITHER_END:]
        assert statistics.median(last) <= 3 * statistics.median(first)
