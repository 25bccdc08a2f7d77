"""Three ranks of one node, whose chunks pass from rank to rank: one dies, stops or leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.children import Child, read_all, stop
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    InThreads = Callable[..., list[Any]]
    Event = dict[str, Any]

PROGRAMS = Path(__file__).parent / "programs"
RANKS = (0, 1, 2)
ELEMENTS = 16 << 20
"""64 MiB: several times what may be in flight."""
NOTICE_SECONDS = 2.0
STANDSTILL_SECONDS = 0.3
STOPPED_SECONDS = 2.0
PATIENCE_SECONDS = 40.0
HOST = socket.gethostname()
OFF = {"GRADWIRE_SHM": "off"}


class Trio:
    """Three rank processes of one node that reduce for ever."""

    def __init__(
        self, daemon: str, folder: Path, additions: Mapping[int, dict[str, str]]
    ) -> None:
        self._stack = ExitStack()
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.ranks = tuple(
            self._start(rank, daemon, folder, additions.get(rank, {})) for rank in RANKS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def events(self, ranks: Sequence[int] = RANKS) -> Iterator[tuple[int, Event]]:
        """What these ranks say; ChildError once one of them has ended."""
        children = [self.ranks[rank] for rank in ranks]
        for child, line in read_all(children, [], PATIENCE_SECONDS):
            yield self.ranks.index(child), json.loads(line)

    def await_rounds(self, rounds: int) -> None:
        """Return once every rank has had so many more, with the right sums in all."""
        left = dict.fromkeys(RANKS, rounds)
        for rank, event in self.events():
            if event["event"] == "round":
                assert event["least"] == event["most"] == 2.0
                left[rank] -= 1
            if max(left.values()) <= 0:
                return

    def _start(
        self, rank: int, daemon: str, folder: Path, additions: Mapping[str, str]
    ) -> Child:
        paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": str(rank),
            "WORLD_SIZE": str(len(RANKS)),
            "GRADWIRE_DAEMON": daemon,
            **additions,
        }
        command = ["rank", "forever", str(ELEMENTS)]
        log = folder / f"rank{rank}.log"
        child = Child(f"rank {rank}", command, environment, log, piped=True)
        self._stack.callback(stop, [child])
        return child


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    """One daemon for all jobs: each shows that the failure before did no harm."""
    with cluster(1) as running:
        yield running
        assert running.daemons[0].exit_code is None


def error_of(trio: Trio, rank: int) -> Event:
    """What this rank raised."""
    return next(event for _, event in trio.events([rank]) if event["event"] == "error")


@pytest.mark.parametrize(
    ("position", "additions"),
    [
        pytest.param(0, {}, id="first"),
        pytest.param(1, {}, id="middle"),
        pytest.param(2, {}, id="last"),
        pytest.param(1, {1: OFF}, id="without shared memory"),
    ],
)
def test_a_rank_that_is_killed_in_mid_collective_is_named_and_the_next_job_works(
    node: Cluster,
    tmp_path: Path,
    position: int,
    additions: dict[int, dict[str, str]],
    threads_over: Callable[[Sequence[str]], InThreads],
) -> None:
    with Trio(node.addresses[0], tmp_path, additions) as trio:
        trio.await_rounds(2)
        victim, neighbour = trio.ranks[position], trio.ranks[(position + 1) % len(RANKS)]
        # While one stands still, the others can't but be in the midst of a collective.
        neighbour.signal(signal.SIGSTOP)
        time.sleep(STANDSTILL_SECONDS)
        victim.signal(signal.SIGKILL)
        killed = time.monotonic()
        neighbour.signal(signal.SIGCONT)
        for rank in set(RANKS) - {position}:
            error = error_of(trio, rank)
            assert error["kind"] == "LostError"
            assert f"rank {position} (pid {victim.pid} on {HOST})" in error["text"]
            assert error["at"] - killed < NOTICE_SECONDS
    assert threads_over(node.addresses)((3,), one_round) == [2.0] * 3


def one_round(session: gradwire.Session) -> float:
    assert session.path == "shared_memory"
    tensor = torch.full((1 << 20,), session.rank + 1.0)
    return session.all_reduce(tensor).wait().mean().item()


@pytest.mark.parametrize(
    ("sleepers", "additions"),
    [
        pytest.param(RANKS, {}, id="shared memory"),
        pytest.param((2,), {2: OFF}, id="without shared memory"),
    ],
)
def test_a_rank_that_is_stopped_for_a_while_only_delays_the_others(
    node: Cluster,
    tmp_path: Path,
    sleepers: tuple[int, ...],
    additions: dict[int, dict[str, str]],
) -> None:
    with Trio(node.addresses[0], tmp_path, additions) as trio:
        trio.await_rounds(1)
        for sleeper in (trio.ranks[rank] for rank in sleepers):
            sleeper.signal(signal.SIGSTOP)
            try:
                time.sleep(STOPPED_SECONDS)
            finally:
                sleeper.signal(signal.SIGCONT)
            # One may have been said before the stop.
            trio.await_rounds(3)


@pytest.mark.parametrize("leaver", RANKS)
def test_a_rank_that_leaves_is_named_to_those_in_a_collective_without_it(
    node: Cluster, threads_over: Callable[[Sequence[str]], InThreads], leaver: int
) -> None:
    def work(session: gradwire.Session) -> str:
        tensor = torch.full((ELEMENTS,), session.rank + 1.0)
        session.all_reduce(tensor).wait()
        if session.rank == leaver:
            time.sleep(0.2)
            return ""
        with pytest.raises(gradwire.LostError) as caught:
            session.all_reduce(tensor).wait()
        return str(caught.value)

    for rank, text in enumerate(threads_over(node.addresses)((3,), work)):
        assert f"rank {leaver} left" in text or rank == leaver


@pytest.mark.parametrize("leaver", RANKS)
def test_a_rank_that_leaves_its_own_collective_unfinished_is_named(
    node: Cluster, threads_over: Callable[[Sequence[str]], InThreads], leaver: int
) -> None:
    submitted = threading.Barrier(len(RANKS))

    def work(session: gradwire.Session) -> str:
        future = session.all_reduce(torch.full((ELEMENTS,), session.rank + 1.0))
        submitted.wait(PATIENCE_SECONDS)
        if session.rank == leaver:
            session.close()
        with pytest.raises(gradwire.LostError) as caught:
            future.wait()
        return str(caught.value)

    for rank, text in enumerate(threads_over(node.addresses)((3,), work)):
        words = "this session was closed" if rank == leaver else f"rank {leaver} left"
        assert words in text
    assert threads_over(node.addresses)((3,), one_round) == [2.0] * 3
