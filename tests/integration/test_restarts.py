"""torchrun forms a job again, over the same daemons, when a rank dies or a node leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = Path(__file__).parent / "programs"
JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SECONDS = 90


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(2) as running:
        yield running
        assert [daemon.exit_code for daemon in running.daemons] == [None, None]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun(
    stack: ExitStack, daemon: str, *arguments: str, program: tuple[str, ...]
) -> subprocess.Popen[str]:
    """A launcher and its ranks, in a process group of their own."""
    environment = {name: text for name, text in os.environ.items() if name not in JOB}
    environment |= {"GRADWIRE_DAEMON": daemon, "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--monitor-interval", "0.1"),
            *arguments,
            *(str(PROGRAMS / "elastic.py"), *program),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()

    stack.callback(end)
    return launcher


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def select(said: list[dict[str, Any]], event: str, **facts: object) -> list[dict[str, Any]]:
    return [one for one in said if facts.items() | {("event", event)} <= one.items()]


@pytest.mark.case("E17")
@pytest.mark.parametrize("standalone", [True, False])
def test_a_job_is_formed_again_after_a_rank_has_died(nodes: Cluster, standalone: bool) -> None:
    """All lives share the launcher's store. Gloo does not form again over it: left out."""
    where = ("--standalone",) if standalone else ("--master-port", str(free_port()))
    with ExitStack() as stack:
        places = ("--nproc-per-node", "2", "--max-restarts", "1")
        launcher = torchrun(stack, nodes.addresses[0], *places, *where, program=("6", "1"))
        output, _ = launcher.communicate(timeout=SECONDS)
    said = events(output)
    assert launcher.returncode == 0, said
    # The launcher may end it before it has said so.
    for error in select(said, "error"):
        assert error["life"] == error["rank"] == 0
        assert "rank 1 (pid " in error["text"]
        assert "was killed by SIGKILL" in error["text"]
    assert len(select(said, "done", life=1, world=2)) == 2
    assert {one["mean"] for one in select(said, "mean")} == {1.5}
    assert len({one["generation"] for one in select(said, "connected")}) == 2


@pytest.mark.case("E17")
def test_the_other_nodes_go_on_without_one_that_leaves(nodes: Cluster) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    elastic = (
        *("--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job"),
        "--rdzv-conf",
    )
    times = "keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=5"
    with ExitStack() as stack:
        stays, leaves = (
            torchrun(
                *(stack, daemon, *elastic, f"{times},is_host={host}"),
                program=("120", "-1", "gloo"),
            )
            for daemon, host in zip(nodes.addresses, ("true", "false"), strict=True)
        )
        assert leaves.stdout is not None
        while select(events(leaves.stdout.readline()), "mean", world=2) == []:
            assert leaves.poll() is None
        gone = psutil.Process(leaves.pid)
        for process in [gone, *gone.children(recursive=True)]:
            process.kill()
        output, _ = stays.communicate(timeout=SECONDS)
    said = events(output)
    assert stays.returncode == 0, said
    assert select(said, "mean", world=2)[0]["mean"] == 1.5
    (alone,) = select(said, "mean", world=1)
    assert alone["mean"] == 1.0
    assert len(select(said, "done", world=1)) == 1
