"""Somebody dies, leaves, is late or is stuck: everybody else hears of it in time, by name."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.children import Child, read_all, stop
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PROGRAMS = Path(__file__).parent / "programs"
NOTICE_SECONDS = 2.0
HOST = socket.gethostname()


class Job:
    """Ranks that meet in one store: as threads here, or as processes that can be killed."""

    def __init__(
        self, world_size: int, timeout: float = 60.0, warn_after: float | None = None
    ) -> None:
        self._world_size = world_size
        self._timeout = timeout
        self._warn_after = warn_after
        self._server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, seats: dict[int, str]) -> dict[int, gradwire.Session]:
        """Ranks of this process, at these daemons; all others must come meanwhile."""

        def one(rank: int) -> gradwire.Session:
            # Of its own: a store's client serves one waiting thread at a time.
            store = dist.TCPStore("127.0.0.1", self._server.port, timeout=timedelta(seconds=60))
            return gradwire.connect(
                store=store,
                rank=rank,
                world_size=self._world_size,
                daemon=seats[rank],
                timeout=self._timeout,
                warn_after=self._warn_after,
            )

        with ThreadPoolExecutor(len(seats)) as pool:
            sessions = dict(zip(seats, pool.map(one, seats), strict=True))
        for session in sessions.values():
            self._stack.callback(session.close)
        return sessions

    def start(self, rank: int, daemon: str, log: Path, *arguments: str) -> Child:
        """A rank as a process."""
        paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._server.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": str(rank),
            "WORLD_SIZE": str(self._world_size),
            "GRADWIRE_DAEMON": daemon,
        }
        command = ["rank", *arguments]
        child = Child(f"rank {rank}", command, environment, log, piped=True)
        self._stack.callback(stop, [child])
        return child


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """One pair of daemons for all jobs: each shows that the failure before did no harm."""
    with cluster(2) as running:
        yield running


@pytest.fixture
def mortal() -> Iterator[Cluster]:
    """Daemons that a test may kill."""
    with cluster(2) as running:
        yield running


def raised(call: Callable[[], object]) -> tuple[float, gradwire.GradwireError]:
    """When it raised, and what."""
    with pytest.raises(gradwire.GradwireError) as caught:
        call()
    return time.monotonic(), caught.value


def submit(session: gradwire.Session, elements: int = 1) -> Callable[[], torch.Tensor]:
    """A contribution on its way; the call waits for the result."""
    return session.all_reduce(torch.full((elements,), session.rank + 1.0)).wait


def train(session: gradwire.Session, elements: int) -> None:
    while True:
        submit(session, elements)()


def all_raise(
    calls: Sequence[Callable[[], object]], provoke: Callable[[], float]
) -> list[tuple[float, gradwire.GradwireError]]:
    """Seconds from the time that provoking gives to the error, and the error, of each call."""
    with ThreadPoolExecutor(len(calls)) as pool:
        waiting = [pool.submit(raised, call) for call in calls]
        began = provoke()
        ends = [each.result(30) for each in waiting]
    return [(at - began, error) for at, error in ends]


def kill(victim: Child) -> float:
    victim.signal(signal.SIGKILL)
    return time.monotonic()


def assert_works(addresses: tuple[str, ...]) -> None:
    """Another job, a rank at each of these daemons."""
    with Job(len(addresses)) as job:
        waiting = [submit(each) for each in job.connect(dict(enumerate(addresses))).values()]
        assert [wait().item() for wait in waiting] == [1.5, 1.5]


def assert_rank_1_is_mourned(
    ends: list[tuple[float, gradwire.GradwireError]], victim: Child
) -> None:
    for seconds, error in ends:
        assert isinstance(error, gradwire.LostError)
        assert f"rank 1 (pid {victim.pid} on {HOST})" in str(error)
        assert seconds < NOTICE_SECONDS


@pytest.mark.case("R01")
def test_a_rank_that_dies_before_its_first_collective_is_named(
    nodes: Cluster, tmp_path: Path
) -> None:
    here, there = nodes.addresses
    with Job(3) as job:
        victim = job.start(1, here, tmp_path / "rank1.log", "hold")
        sessions = job.connect({0: here, 2: there})
        waiting = [submit(session) for session in sessions.values()]
        assert_rank_1_is_mourned(all_raise(waiting, lambda: kill(victim)), victim)
        assert_works(nodes.addresses)


def test_letters_to_and_from_a_rank_that_dies_fail(nodes: Cluster, tmp_path: Path) -> None:
    here, there = nodes.addresses
    with Job(3) as job:
        victim = job.start(1, here, tmp_path / "rank1.log", "hold")
        sessions = job.connect({0: here, 2: there})
        waiting: list[Callable[[], object]] = []
        for session in sessions.values():
            waiting.append(session.send(torch.ones(1 << 20), 1).wait)
            waiting.append(session.receive(torch.ones(1), 1).wait)
        assert_rank_1_is_mourned(all_raise(waiting, lambda: kill(victim)), victim)
        assert_works(nodes.addresses)


def test_a_rank_that_dies_in_the_middle_of_a_round_is_named(
    nodes: Cluster, tmp_path: Path
) -> None:
    here, there = nodes.addresses
    elements = 8 << 20

    def kill_at_work() -> float:
        events = (json.loads(line)["event"] for _, line in read_all([victim], [], 30))
        next(event for event in events if event == "round")
        return kill(victim)

    with Job(3) as job:
        victim = job.start(1, here, tmp_path / "rank1.log", "forever", str(elements))
        sessions = job.connect({0: here, 2: there})
        training = [partial(train, session, elements) for session in sessions.values()]
        assert_rank_1_is_mourned(all_raise(training, kill_at_work), victim)
        assert_works(nodes.addresses)


@contextmanager
def three_ranks(
    nodes: Cluster, timeout: float = 60.0, warn_after: float | None = None
) -> Iterator[dict[int, gradwire.Session]]:
    """Ranks 0 and 1 at the first daemon, rank 2 at the second."""
    here, there = nodes.addresses
    with Job(3, timeout, warn_after) as job:
        yield job.connect({0: here, 1: here, 2: there})


def test_a_daemon_that_dies_is_named_on_its_own_node_and_on_the_others(
    mortal: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_RESUME", "0")
    address = query.describe(mortal.addresses[0]).address
    with three_ranks(mortal) as sessions:
        waiting = [submit(sessions[0]), submit(sessions[2])]
        own, other = all_raise(waiting, lambda: kill(mortal.daemons[0]))
        _, idle = raised(lambda: submit(sessions[1])())
    assert max(own[0], other[0]) < NOTICE_SECONDS
    assert mortal.addresses[0] in str(own[1])
    assert f"node 0 at {address} on {HOST}" in str(other[1])
    assert mortal.addresses[0] in str(idle)
    assert {type(error) for error in (own[1], other[1], idle)} == {gradwire.LostError}


def test_a_rank_that_leaves_early_is_named_to_those_that_go_on(nodes: Cluster) -> None:
    def leave() -> float:
        began = time.monotonic()
        sessions[1].close()
        return began

    with three_ranks(nodes) as sessions:
        for wait in [submit(session) for session in sessions.values()]:
            assert wait().item() == 2.0
        ends = all_raise([submit(sessions[0]), submit(sessions[2])], leave)
    for seconds, error in ends:
        assert isinstance(error, gradwire.LostError)
        assert "rank 1 left" in str(error)
        assert seconds < NOTICE_SECONDS


@pytest.mark.parametrize("late", [1, 2])
def test_a_rank_that_never_comes_to_a_round_is_waited_for_warned_of_and_named(
    nodes: Cluster, late: int
) -> None:
    who = f"rank {late} (pid {os.getpid()} on {HOST})"
    log = nodes.folder / f"node{late - 1}.log"
    with three_ranks(nodes, timeout=1.0, warn_after=0.3) as sessions:
        began = time.monotonic()
        waiting = [submit(session) for session in sessions.values() if session.rank != late]
        ends = all_raise(waiting, lambda: began)
        _, own = raised(lambda: submit(sessions[late])())
        again = [submit(session) for session in sessions.values()]
        assert [wait().item() for wait in again] == [2.0, 2.0, 2.0]
        generation = sessions[0].generation[:8]
    lines = [line for line in log.read_text().splitlines() if generation in line]
    assert any("WARNING" in line and "has waited 0." in line and who in line for line in lines)
    for seconds, error in ends:
        assert who in str(error)
        assert 1.0 <= seconds < 1.0 + NOTICE_SECONDS
    assert who in str(own)
    assert {type(error) for _, error in [*ends, (0, own)]} == {gradwire.RoundTimeoutError}


def test_a_daemon_that_is_stuck_is_named_after_timeout_and_grace(mortal: Cluster) -> None:
    address = query.describe(mortal.addresses[0]).address
    stuck = mortal.daemons[0]
    with three_ranks(mortal, timeout=1.0) as sessions:
        stuck.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            waiting = [submit(sessions[0]), submit(sessions[2])]
            own, other = all_raise(waiting, lambda: began)
        finally:
            stuck.signal(signal.SIGCONT)
    assert isinstance(own[1], gradwire.LostError)
    assert f"the daemon at {mortal.addresses[0]} has been silent" in str(own[1])
    # The deadline of the round and that of the silent node are the same here.
    assert isinstance(other[1], gradwire.RoundTimeoutError | gradwire.LostError)
    assert f"node 0 at {address} on {socket.gethostname()} (ranks 0, 1)" in str(other[1])
    assert max(own[0], other[0]) < 10
