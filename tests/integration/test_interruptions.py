"""Signals, forks and early ends, in a process of its own beside an honest rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 30
EPOCHS, STEPS = 5, 4


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with cluster(1) as running:
        yield running


@contextmanager
def beside(
    node: Cluster, scene: str
) -> Iterator[tuple[gradwire.Session, subprocess.Popen[str]]]:
    """Rank 0 here, and the disturbed rank 1 in a process of its own, in a group of its own."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    daemon = node.addresses[0]
    paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
    disturbed = subprocess.Popen(
        [sys.executable, "-m", "interrupted", scene, str(store.port), daemon],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        with gradwire.connect(
            store=store, rank=0, world_size=2, daemon=daemon, timeout=20
        ) as session:
            yield session, disturbed
    finally:
        with suppress(ProcessLookupError):
            os.killpg(disturbed.pid, signal.SIGKILL)
        disturbed.communicate()


def test_ctrl_c_is_heard_though_another_thread_listens(node: Cluster) -> None:
    with beside(node, "ctrl_c") as (_, disturbed):
        words, _ = disturbed.communicate(timeout=SECONDS)
        assert words.startswith("interrupted after"), words
        assert float(words.split()[2]) < 2


def test_a_script_that_ends_in_mid_collective_ends_at_once_and_is_named(node: Cluster) -> None:
    with beside(node, "chained") as (session, disturbed):
        session.all_reduce(torch.ones(3)).wait()
        assert disturbed.stdout is not None
        assert disturbed.stdout.readline() == "leaving\n"
        began = time.monotonic()
        # What was chained may have brought its part to the second one before the end.
        with suppress(gradwire.LostError):
            session.all_reduce(torch.ones(3)).wait()
        with pytest.raises(gradwire.LostError, match="rank 1"):
            session.all_reduce(torch.ones(3)).wait()
        assert time.monotonic() - began < 2
        assert disturbed.wait(SECONDS) == 0


@pytest.mark.case("R21")
def test_a_forked_child_neither_harms_its_parents_session_nor_hides_its_end(
    node: Cluster,
) -> None:
    with beside(node, "fork") as (session, disturbed):
        session.all_reduce(torch.ones(3)).wait()
        assert disturbed.stdout is not None
        assert "not to one forked from it" in disturbed.stdout.readline()
        session.all_reduce(torch.ones(3)).wait()
        assert disturbed.stdout.readline() == "parent: [1.0, 1.0, 1.0]\n"
        began = time.monotonic()
        with pytest.raises(gradwire.LostError, match=f"rank 1 .pid {disturbed.pid} "):
            session.all_reduce(torch.ones(3)).wait()
        assert time.monotonic() - began < 2


@pytest.mark.case("R21")
def test_loader_workers_and_subprocesses_of_a_rank_come_and_go(node: Cluster) -> None:
    with beside(node, "children") as (session, disturbed):
        for number in range(EPOCHS * STEPS):
            result = session.all_reduce(torch.full((3,), float(number))).wait()
            assert result.tolist() == [float(number)] * 3
        words, _ = disturbed.communicate(timeout=SECONDS)
        assert words.splitlines()[-1] == "all right", words
        assert disturbed.returncode == 0


@pytest.mark.case("R29")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_rank_may_run_an_event_loop_with_grpc_in_it(node: Cluster, loop: str) -> None:
    """The daemon has a loop of its own, in a process of its own; a session has none."""
    paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "GRADWIRE_DAEMON": node.addresses[0],
    }
    command = [sys.executable, "-m", "loops", loop]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=4 * SECONDS
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 0
    assert "BlockingIOError" not in ended.stderr
    assert "Traceback" not in ended.stderr
