"""Jobs come and go, in good order or killed, and leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import runpy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.cluster import Cluster, cluster
from hostile.holdings import Holdings, arenas, generations, seated, soon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CYCLES = 20
WARM_UP = 2
KILLS = 5
WORLD = 3
"""The first two at one node."""
SECONDS = 30.0
GROWTH_BYTES = 12 << 20

VICTIM = """
import time
import torch
import torch.distributed as dist
import gradwire

session = gradwire.connect(store=dist.FileStore(STORE), rank=0, world_size=2, daemon=DAEMON)
session.all_reduce(torch.ones(1000)).wait()
PIPE.send("up")
time.sleep(60)
"""


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.fixture(scope="module")
def nodes(memory: Path) -> Iterator[Cluster]:
    settings = {
        "GRADWIRE_SHM_DIR": str(memory),
        "GRADWIRE_METRICS_LISTEN": "127.0.0.1:0",
        "GRADWIRE_CHUNK_BYTES": "65536",
    }
    with cluster(2, settings) as running:
        yield running


def come_and_go(nodes: Cluster) -> None:
    """A job of three ranks, one sum, and all leave."""
    store = dist.HashStore()

    def sit(rank: int) -> None:
        daemon = nodes.addresses[rank // 2]
        with gradwire.connect(
            store=store, rank=rank, world_size=WORLD, daemon=daemon
        ) as session:
            total = session.all_reduce(torch.full((40_000,), rank + 1.0), "sum").wait()
            assert torch.equal(total, torch.full((40_000,), 6.0))

    with ThreadPoolExecutor(WORLD) as pool:
        list(pool.map(sit, range(WORLD)))


def nothing_is_left(nodes: Cluster, memory: Path, before: list[Holdings]) -> None:
    assert soon(lambda: not generations(nodes), SECONDS)
    assert soon(lambda: not arenas(memory))
    assert seated(nodes) == 0
    for pid, had in zip(processes(nodes), before, strict=True):

        def within(pid: int = pid, had: Holdings = had) -> bool:
            return Holdings.of(pid).within(had)

        assert soon(within), (had, Holdings.of(pid))
        assert Holdings.of(pid).resident_bytes < had.resident_bytes + GROWTH_BYTES


def holdings(nodes: Cluster) -> list[Holdings]:
    """Once no job is left."""
    assert soon(lambda: not generations(nodes), SECONDS)
    return [Holdings.of(pid) for pid in processes(nodes)]


def processes(nodes: Cluster) -> list[int]:
    """The daemons, and the one in which the ranks are."""
    return [*(daemon.pid for daemon in nodes.daemons), os.getpid()]


@pytest.mark.parametrize("shared", ["on", "off"])
def test_jobs_that_come_and_go_leave_nothing_behind(
    nodes: Cluster, memory: Path, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", shared)
    for _ in range(WARM_UP):
        come_and_go(nodes)
    before = holdings(nodes)
    for _ in range(CYCLES // 2):
        come_and_go(nodes)
    nothing_is_left(nodes, memory, before)


def killed_session(nodes: Cluster, folder: Path) -> None:
    """One of two ranks is killed in the midst of a collective; the other one hears of it."""
    folder.mkdir()
    script, store = folder / "victim.py", str(folder / "store")
    script.write_text(VICTIM)
    ours, theirs = multiprocessing.Pipe()
    names: dict[str, Any] = {"STORE": store, "DAEMON": nodes.addresses[0], "PIPE": theirs}
    # A server that has torch imported, and nothing else that must not be forked.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gradwire", "torch.distributed"])
    victim = context.Process(
        target=runpy.run_path, args=(str(script),), kwargs={"init_globals": names}
    )
    victim.start()
    with gradwire.connect(
        store=dist.FileStore(store), rank=1, world_size=2, daemon=nodes.addresses[1]
    ) as session:
        session.all_reduce(torch.ones(1000)).wait()
        assert ours.poll(SECONDS)
        assert ours.recv() == "up"
        open_one = session.all_reduce(torch.ones(1000))
        victim.kill()
        victim.join(SECONDS)
        with pytest.raises(gradwire.LostError, match="rank 0"):
            open_one.wait()
    victim.close()
    ours.close()
    theirs.close()


def test_sessions_that_are_killed_leave_nothing_behind(
    nodes: Cluster, memory: Path, tmp_path: Path
) -> None:
    killed_session(nodes, tmp_path / "first")
    before = holdings(nodes)
    for kill in range(KILLS):
        killed_session(nodes, tmp_path / str(kill))
    nothing_is_left(nodes, memory, before)
