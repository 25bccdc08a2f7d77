"""However a job's processes are started: torchrun, mp.spawn, or by hand."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = Path(__file__).parent / "programs"
JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SECONDS = 60


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(1) as running:
        yield running


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(nodes: Cluster, commands: list[list[str]], **settings: str) -> list[dict[str, Any]]:
    """What the ranks say; each command gets its number as RANK where the job is set at all."""
    environment = {name: text for name, text in os.environ.items() if name not in JOB}
    environment |= {
        "PYTHONPATH": str(PROGRAMS),
        "GRADWIRE_DAEMON": nodes.addresses[0],
        "OMP_NUM_THREADS": "1",
        **settings,
    }
    with ExitStack() as stack:
        processes = []
        for rank, command in enumerate(commands):
            own = {"RANK": str(rank)} if "WORLD_SIZE" in settings else {}
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**environment, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        ends = [process.communicate(timeout=SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(commands), ends
    return [json.loads(line) for output, _ in ends for line in output.splitlines()]


def assert_both_got_the_mean(events: list[dict[str, Any]]) -> None:
    connected = [one for one in events if one["event"] == "connected"]
    assert sorted(one["rank"] for one in connected) == [0, 1]
    rounds = [one for one in events if one["event"] == "round"]
    assert [(one["least"], one["most"]) for one in rounds] == [(1.5, 1.5)] * 4


def test_a_job_starts_with_torchrun(nodes: Cluster) -> None:
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    command = [*launcher, str(free_port()), str(PROGRAMS / "rank.py"), "2"]
    assert_both_got_the_mean(run(nodes, [command]))


def test_a_job_starts_with_mp_spawn(nodes: Cluster) -> None:
    assert_both_got_the_mean(run(nodes, [["spawn", str(free_port())]]))


def test_a_job_starts_with_plain_environment_variables(nodes: Cluster) -> None:
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    assert_both_got_the_mean(run(nodes, [["rank", "2"]] * 2, **job))
