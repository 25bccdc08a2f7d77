"""Six ranks on three nodes, of which one dies: all others say which, how, and in what."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.children import Child, read_all, stop
from gradwire_ops.cluster import Cluster, cluster

PROGRAMS = Path(__file__).parent / "programs"
HOST = socket.gethostname()
WORLD = 6
VICTIM = 3
ELEMENTS = 16 << 20
"""64 MiB."""
NOTICE_SECONDS = 2.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(3, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as running:
        yield running


class Job:
    """All ranks but one as threads, that one as a process; two at each node."""

    def __init__(
        self, nodes: Cluster, stack: ExitStack, log: Path, *command: str, **own: str
    ) -> None:
        self._nodes = nodes
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.victim = self._start(log, command, own)
        stack.callback(stop, [self.victim])
        others = [rank for rank in range(WORLD) if rank != VICTIM]
        with ThreadPoolExecutor(len(others)) as pool:
            self.sessions = list(pool.map(self._connect, others))
        for session in self.sessions:
            stack.callback(session.close)

    def _connect(self, rank: int) -> gradwire.Session:
        store = dist.TCPStore("127.0.0.1", self._store.port, timeout=timedelta(seconds=60))
        daemon = self._nodes.addresses[rank // 2]
        return gradwire.connect(store=store, rank=rank, world_size=WORLD, daemon=daemon)

    def _start(self, log: Path, command: tuple[str, ...], own: dict[str, str]) -> Child:
        paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": str(VICTIM),
            "WORLD_SIZE": str(WORLD),
            "GRADWIRE_DAEMON": self._nodes.addresses[VICTIM // 2],
            **own,
        }
        return Child("the victim", ["rank", *command], environment, log, piped=True)

    def await_event(self, name: str) -> None:
        for _, line in read_all([self.victim], [], 40):
            if json.loads(line)["event"] == name:
                return

    def errors(self, call: Callable[[gradwire.Session], None]) -> list[tuple[float, str]]:
        """When each survivor raised LostError, and its text."""

        def caught(session: gradwire.Session) -> tuple[float, str]:
            with pytest.raises(gradwire.LostError) as error:
                call(session)
            return time.monotonic(), str(error.value)

        with ThreadPoolExecutor(len(self.sessions)) as pool:
            return list(pool.map(caught, self.sessions))


def joined(nodes: Cluster) -> float:
    """What the daemons' pages say of ranks that are there, together."""
    total = 0.0
    for address in nodes.addresses:
        with urlopen(f"http://{query.status(address).metrics}/metrics", timeout=5) as page:
            lines = [line.split() for line in page.read().decode().splitlines()]
        total += sum(float(line[1]) for line in lines if line[0] == "gradwire_ranks_joined")
    return total


def assert_the_next_job_is_right(nodes: Cluster) -> None:
    store = dist.HashStore()

    def one(rank: int) -> float:
        daemon = nodes.addresses[rank]
        with gradwire.connect(store=store, rank=rank, world_size=3, daemon=daemon) as session:
            tensor = torch.full((ELEMENTS // 16,), rank + 1.0)
            return session.all_reduce(tensor).wait().mean().item()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(one, range(3))) == [2.0] * 3


def once(session: gradwire.Session) -> None:
    session.all_reduce(torch.ones(5)).wait()


def forever(session: gradwire.Session) -> None:
    tensor = torch.ones(ELEMENTS)
    while True:
        session.all_reduce(tensor).wait()


@pytest.mark.case("R01")
@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_rank_that_is_killed_in_mid_bucket_is_named_with_its_signal_and_the_round(
    nodes: Cluster, tmp_path: Path, switch: str
) -> None:
    with ExitStack() as stack:
        job = Job(nodes, stack, tmp_path / "log", "forever", str(ELEMENTS), GRADWIRE_SHM=switch)
        assert joined(nodes) == WORLD
        killed: list[float] = []

        def kill() -> None:
            job.await_event("round")
            job.victim.signal(signal.SIGKILL)
            killed.append(time.monotonic())

        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            errors = job.errors(forever)
            killing.result()
        for at, text in errors:
            assert f"rank {VICTIM} (pid {job.victim.pid} on {HOST}) is lost:" in text
            assert "its process was killed by SIGKILL while round " in text
            assert " was under way; collective " in text
            assert at - killed[0] < NOTICE_SECONDS
    end = time.monotonic() + 10
    while joined(nodes):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert_the_next_job_is_right(nodes)


@pytest.mark.case("R01")
def test_a_rank_that_exits_before_its_first_collective_is_named_with_its_exit_code(
    nodes: Cluster, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        job = Job(nodes, stack, tmp_path / "log", "exit", "7")
        errors = job.errors(once)
        for _, text in errors:
            assert f"rank {VICTIM} (pid {job.victim.pid} on {HOST}) is lost:" in text
            assert "its process ended with exit code 7 without leaving the job" in text
    assert_the_next_job_is_right(nodes)


class Bucket:
    """As much of DDP's bucket as the hook looks at."""

    def __init__(self, index: int, last: bool) -> None:
        self._index = index
        self._last = last
        self._parameters = [torch.nn.Parameter(torch.ones(5))]

    def buffer(self) -> torch.Tensor:
        return torch.ones(5)

    def parameters(self) -> list[Any]:
        return self._parameters

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last


@pytest.mark.case("R01")
def test_the_error_says_which_bucket_of_which_step_has_no_result(
    nodes: Cluster, tmp_path: Path
) -> None:
    def step(session: gradwire.Session) -> None:
        buckets: list[Any] = [Bucket(0, last=False), Bucket(1, last=True)]
        futures = [gradwire.allreduce_hook(session, bucket) for bucket in buckets]
        with pytest.raises(gradwire.LostError, match="it is bucket 0 of step 1"):
            futures[0].wait()
        futures[1].wait()

    with ExitStack() as stack:
        job = Job(nodes, stack, tmp_path / "log", "exit", "7")
        for _, text in job.errors(step):
            assert text.endswith("it is bucket 1 of step 1")
