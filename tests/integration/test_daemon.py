"""The daemon as a process: how it stops, and what it leaves behind."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_SECONDS = 10.0


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for shared memory."""
    folder = Path(tempfile.mkdtemp(prefix="gradwire-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def connect(addresses: tuple[str, ...]) -> list[gradwire.Session]:
    """A job with a rank at each of these daemons."""
    store, world = dist.HashStore(), len(addresses)

    def one(rank: int) -> gradwire.Session:
        return gradwire.connect(
            store=store, rank=rank, world_size=world, daemon=addresses[rank]
        )

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))


def assert_stops(nodes: Cluster, number: signal.Signals, memory: Path) -> None:
    """The first daemon ends well, in time, and nothing of it stays."""
    daemon = nodes.daemons[0]
    children = psutil.Process(daemon.pid).children(recursive=True)
    began = time.monotonic()
    daemon.signal(number)
    assert daemon.wait(STOP_SECONDS)
    assert time.monotonic() - began < STOP_SECONDS
    assert daemon.exit_code == 0
    assert not psutil.wait_procs(children, timeout=0)[1]
    assert list(memory.iterdir()) == []
    assert [path.name for path in nodes.folder.glob("node0*")] == ["node0.log"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_daemon_stops_in_good_order(number: signal.Signals, memory: Path) -> None:
    with cluster(1, {"GRADWIRE_SHM_DIR": str(memory)}) as nodes:
        assert any(path.is_socket() for path in memory.iterdir()), "the doorbell"
        assert_stops(nodes, number, memory)


@pytest.mark.case("R22")
@pytest.mark.parametrize(("number", "switch"), [(signal.SIGTERM, "on"), (signal.SIGINT, "off")])
def test_a_busy_daemon_stops_in_good_order_and_its_ranks_are_told(
    number: signal.Signals, switch: str, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", switch)
    with cluster(1, {"GRADWIRE_SHM_DIR": str(memory)}) as nodes:
        address = query.describe(nodes.addresses[0]).address
        first, second = connect(nodes.addresses * 2)
        with first, second:
            assert first.path == ("shared_memory" if switch == "on" else "stream")
            # A whole round first: then both lines are known to be open.
            rounds = [each.all_reduce(torch.ones(1)) for each in (first, second)]
            assert [each.wait().item() for each in rounds] == [1.0, 1.0]
            waiting = first.all_reduce(torch.ones(1))
            assert_stops(nodes, number, memory)
            told = f"the daemon at {address} is stopping"
            with pytest.raises(gradwire.LostError, match=told):
                waiting.wait()
            with pytest.raises(gradwire.LostError, match=told):
                second.all_reduce(torch.ones(1)).wait()


@pytest.mark.case("R22")
def test_a_daemon_that_is_told_twice_stops_once_and_its_port_is_free(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", "off")
    with cluster(1, {"GRADWIRE_SHM_DIR": str(memory)}) as nodes:
        host, port = query.describe(nodes.addresses[0]).address.split(":")
        first, second = connect(nodes.addresses * 2)
        with first, second:
            rounds = [each.all_reduce(torch.ones(1)) for each in (first, second)]
            assert [each.wait().item() for each in rounds] == [1.0, 1.0]
            waiting = first.all_reduce(torch.ones(1 << 22))
            nodes.daemons[0].signal(signal.SIGTERM)
            assert_stops(nodes, signal.SIGTERM, memory)
            with pytest.raises(gradwire.LostError, match="is stopping"):
                waiting.wait()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind((host, int(port)))
            again.listen()


def test_a_stopping_daemon_is_named_to_the_ranks_of_other_nodes(memory: Path) -> None:
    with cluster(2, {"GRADWIRE_SHM_DIR": str(memory)}) as nodes:
        address = query.describe(nodes.addresses[0]).address
        here, there = connect(nodes.addresses)
        with here, there:
            waiting = there.all_reduce(torch.ones(1))
            nodes.daemons[0].signal(signal.SIGTERM)
            with pytest.raises(gradwire.LostError, match=f"{address} is stopping"):
                waiting.wait()
            assert nodes.daemons[0].wait(STOP_SECONDS)
        assert nodes.daemons[1].exit_code is None
