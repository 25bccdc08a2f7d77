"""A job on a node without a daemon brings its own, which ends with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.children import Child, stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire_proto.v1 import aggregator_pb2 as pb

PROGRAMS = Path(__file__).parent / "programs"
OURS = {name: text for name, text in os.environ.items() if not name.startswith("GRADWIRE_")}
GONE_SECONDS = 10.0
NOTICE_SECONDS = 2.0

pytestmark = pytest.mark.skipif(
    Path("/run/gradwire/gradwire.sock").exists(), reason="this machine has a daemon"
)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[list[Path]]:
    """Where the job's temporary files, and its shared memory, go."""
    memory = Path(tempfile.mkdtemp(prefix="gradwire-test-", dir="/dev/shm"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    yield [temporary, memory]
    shutil.rmtree(memory)


@contextmanager
def job(
    names: list[str], folders: list[Path], rounds: str, *, agreed: bool = True
) -> Iterator[list[Child]]:
    """A rank for each name of a node, meeting in a store that outlives them."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    temporary, memory = map(str, folders)
    ranks: list[Child] = []
    try:
        for rank, name in enumerate(names):
            environment = {
                **OURS,
                "PYTHONPATH": str(PROGRAMS),
                "TMPDIR": temporary,
                "XDG_RUNTIME_DIR": temporary,
                "GRADWIRE_SHM_DIR": memory,
                "GRADWIRE_NODE": name,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(server.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "RANK": str(rank),
                "WORLD_SIZE": str(len(names)),
                "GRADWIRE_CHUNK_BYTES": str(1 << 20 if agreed else 4096 << rank),
            }
            log = folders[0].parent / f"rank{rank}.log"
            ranks.append(Child(f"rank {rank}", ["rank", rounds], environment, log, piped=True))
        yield ranks
    finally:
        stop(ranks)


def events(rank: Child) -> Iterator[dict[str, Any]]:
    """What a rank says, to its end."""
    while (lines := rank.read_lines()) is not None:
        yield from map(json.loads, lines)


def assert_gone(pids: set[int], folders: list[Path]) -> None:
    """These daemons end soon, and leave no file."""
    end = time.monotonic() + GONE_SECONDS
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, "an embedded daemon outlived its job"
        time.sleep(0.05)
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("names", "nodes"), [(["", ""], 1), (["left", "right"], 2)], ids=["one node", "two nodes"]
)
def test_an_embedded_daemon_starts_for_each_node_and_ends_with_the_job(
    names: list[str], nodes: int, folders: list[Path]
) -> None:
    with job(names, folders, "3") as ranks:
        said = [list(events(rank)) for rank in ranks]
        assert [rank.wait(GONE_SECONDS) and rank.exit_code for rank in ranks] == [0, 0]
        pids = {one[0]["daemon_pid"] for one in said}
        assert_gone(pids, folders)
    assert len(pids) == nodes
    for connected, *rounds in said:
        assert (connected["nodes"], connected["path"]) == (nodes, "shared_memory")
        assert [(one["least"], one["most"]) for one in rounds] == [(1.5, 1.5)] * 3


def test_an_embedded_daemon_ends_though_the_rank_that_started_it_is_killed(
    folders: list[Path],
) -> None:
    with job(["one", "one"], folders, "forever") as ranks:
        for rank in ranks:
            daemon = next(one for one in events(rank) if one["event"] == "connected")
        starter = psutil.Process(daemon["daemon_pid"]).ppid()
        victim, survivor = sorted(ranks, key=lambda rank: rank.pid != starter)
        assert victim.pid == starter
        victim.signal(signal.SIGKILL)
        killed = time.monotonic()
        error = list(events(survivor))[-1]
        assert_gone({daemon["daemon_pid"]}, folders)
    assert error["event"] == "error"
    assert error["kind"] == "LostError"
    assert f"{victim.name} (pid {victim.pid} on {socket.gethostname()})" in error["text"]
    assert error["at"] - killed < NOTICE_SECONDS


def test_embedded_daemons_end_though_their_job_never_formed(folders: list[Path]) -> None:
    with job(["left", "right"], folders, "1", agreed=False) as ranks:
        said = [list(events(rank)) for rank in ranks]
    daemons = {pid for (error,) in said for pid in error["children"]}
    try:
        for (error,) in said:
            assert error["kind"] == "ConnectError"
            assert "differ in chunk_bytes" in error["text"]
        assert len(daemons) == 2
        assert_gone(daemons, folders)
    finally:
        for daemon in filter(is_alive, daemons):
            os.kill(daemon, signal.SIGTERM)


def train_on(session: gradwire.Session) -> None:
    """For five seconds, or until it fails: the ranks of one node add without the daemon."""
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        session.all_reduce(torch.ones(1)).wait()


def live_in(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what this process starts make its files there."""
    temporary, memory = folders
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(temporary))
    monkeypatch.setenv("GRADWIRE_SHM_DIR", str(memory))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("GRADWIRE_NODE", "of this test")


def daemon_of_this_process() -> psutil.Process:
    """The embedded one, which it has started."""
    (daemon,) = [
        child
        for child in psutil.Process().children()
        if child.cmdline()[-2:] == ["-m", "gradwire_server"]
    ]
    return daemon


def test_a_process_whose_embedded_daemon_died_gets_another(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    live_in(folders, monkeypatch)
    monkeypatch.setenv("GRADWIRE_RESUME", "0")
    store = dist.HashStore()
    daemons = []
    for _ in range(2):
        session = gradwire.connect(store=store, rank=0, world_size=1, connect_timeout=20.0)
        session.all_reduce(torch.ones(1)).wait()
        daemons.append(session.daemon)
        daemon_of_this_process().kill()
        with pytest.raises(gradwire.LostError):
            train_on(session)
        session.close()
    assert len(set(daemons)) == 2


def await_other(address: str, lives: set[str]) -> pb.DescribeResponse:
    """Who answers there, as soon as it is none of these."""
    deadline = time.monotonic() + 30
    while True:
        try:
            described = query.describe(address)
        except query.UnreachableError:
            described = None
        if described is not None and described.node_id not in lives:
            return described
        assert time.monotonic() < deadline, "nobody has started it again"
        time.sleep(0.05)


def test_an_embedded_daemon_that_is_killed_is_started_again_where_it_was(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    live_in(folders, monkeypatch)
    with gradwire.connect(store=dist.HashStore(), rank=0, world_size=1) as session:
        address = session.daemon
        lives: set[str] = set()
        for _ in range(2):
            session.all_reduce(torch.ones(1)).wait()
            described = await_other(address, lives)
            lives.add(described.node_id)
            daemon_of_this_process().kill()
            assert session.all_reduce(torch.full((9,), 3.0)).wait().tolist() == [3.0] * 9
            assert session.daemon == address
            # Where others would look for it.
            assert await_other(address, lives).address == described.address
            deadline = time.monotonic() + 30
            while not query.status(address).jobs:
                assert time.monotonic() < deadline, "the rank has not come back"
                time.sleep(0.05)
        pid = daemon_of_this_process().pid
    assert len(lives) == 2
    assert_gone({pid}, folders)
