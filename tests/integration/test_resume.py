"""Daemons that are killed and come back: nothing is lost, and nobody waits for ever.

What befalls jobs of processes at random moments is in test_drill.py; here it is chosen ones.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.children import stop
from gradwire_ops.cluster import Cluster, await_ready, cluster, start
from gradwire_ops.place import HERE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

SMALL_CHUNKS = {"GRADWIRE_CHUNK_BYTES": "65536", "GRADWIRE_SLOTS": "2"}
SIZES = (3, 5_000, 200_000)
STEPS = 12
RESUME_SECONDS = 30.0
PATIENCE_SECONDS = 60.0


class Mortal:
    """Daemons that may be killed, and started again where they were."""

    def __init__(self, cluster_: Cluster, settings: dict[str, str]) -> None:
        self.addresses = cluster_.addresses
        self._folder = cluster_.folder
        self._settings = settings
        self._daemons = dict(enumerate(cluster_.daemons))
        self._lives = count(1)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            self._daemons[node].signal(signal.SIGKILL)
            assert self._daemons[node].wait(PATIENCE_SECONDS)

    def revive(self, *nodes: int) -> None:
        for node in nodes:
            daemon = start(self._folder, node, self._settings, HERE, next(self._lives))
            self._stack.callback(stop, [daemon])
            self._daemons[node] = daemon
        await_ready(
            [self._daemons[node] for node in nodes], [self.addresses[node] for node in nodes]
        )

    def replace(self, *nodes: int) -> None:
        self.kill(*nodes)
        self.revive(*nodes)


@pytest.fixture
def mortal(request: pytest.FixtureRequest) -> Iterator[Mortal]:
    """Two nodes; chunks so small that many are under way at any moment."""
    settings = {**SMALL_CHUNKS, **getattr(request, "param", {})}
    with cluster(2, settings) as nodes, Mortal(nodes, settings) as daemons:
        yield daemons


class Crew:
    """Ranks as threads: each has a session, and trains as far as it is let."""

    def __init__(self, seats: Sequence[str], **settings: object) -> None:
        self._seats = seats
        given: dict[str, Any] = {"resume": RESUME_SECONDS, "timeout": PATIENCE_SECONDS}
        self._settings = given | settings
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._pool = ThreadPoolExecutor(len(seats))
        self._limit = 0
        self._news = threading.Condition()
        self.steps = [0] * len(seats)

    def __enter__(self) -> Self:
        self.sessions = list(self._pool.map(self._connect, range(len(self._seats))))
        return self

    def __exit__(self, *_: object) -> None:
        self.let(STEPS)
        list(self._pool.map(lambda session: session.close(), self.sessions))
        self._pool.shutdown()

    def _connect(self, rank: int) -> gradwire.Session:
        # Of its own: a store's client serves one waiting thread at a time.
        store = dist.TCPStore("127.0.0.1", self._store.port, timeout=timedelta(seconds=60))
        return gradwire.connect(
            store=store,
            rank=rank,
            world_size=len(self._seats),
            daemon=self._seats[rank],
            **self._settings,
        )

    def begin(self) -> list[Callable[[], str]]:
        """Train; what each rank ends with."""
        runs = [self._pool.submit(self._train, rank) for rank in range(len(self._seats))]
        return [lambda run=run: run.result(PATIENCE_SECONDS) for run in runs]  # type: ignore[misc]

    def let(self, step: int) -> None:
        """Go on up to this step."""
        with self._news:
            self._limit = step
            self._news.notify_all()

    def reach(self, step: int) -> None:
        """Return once a rank is in this step."""
        self.let(step)
        with self._news:
            assert self._news.wait_for(lambda: max(self.steps) >= step, PATIENCE_SECONDS)

    def _train(self, rank: int) -> str:
        session, digest = self.sessions[rank], hashlib.sha256()
        generator, state = torch.Generator().manual_seed(rank), 0.0
        for step in range(STEPS):
            with self._news:
                assert self._news.wait_for(lambda: self._limit >= step, PATIENCE_SECONDS)  # noqa: B023
                self.steps[rank] = step
                self._news.notify_all()
            tensors = [torch.randn(size, generator=generator) + state for size in SIZES]
            futures = [
                session.all_reduce(tensor, name=f"layer {index}")
                for index, tensor in enumerate(tensors)
            ]
            for future in futures:
                future.wait()
            # Whatever is wrong once is wrong in all steps after it.
            state = float(tensors[1][0]) / 10
            for tensor in tensors:
                digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def trained(seats: Sequence[str], **settings: object) -> set[str]:
    """What undisturbed ranks end with."""
    with Crew(seats, **settings) as crew:
        ends = crew.begin()
        crew.let(STEPS)
        return {end() for end in ends}


def seats_of(daemons: Mortal) -> list[str]:
    here, there = daemons.addresses
    return [here, here, there]


def resumes(address: str) -> float:
    """How many the daemon has counted since it began."""
    page = f"http://{query.status(address).metrics}/metrics"
    with build_opener(ProxyHandler({})).open(page) as answer:
        text = answer.read().decode()
    (found,) = re.findall(r"^gradwire_resumes_total (\S+)$", text, re.MULTILINE)
    return float(found)


@pytest.mark.case("R08")
@pytest.mark.parametrize("settings", [{}, {"wire": "int8"}], ids=["exact", "int8"])
def test_ranks_end_with_the_same_bits_though_daemons_are_killed(
    mortal: Mortal, settings: dict[str, Any]
) -> None:
    """Each, and both at once; while collectives are under way, and what is lossy is owed."""
    expected = trained(seats_of(mortal), **settings)
    with Crew(seats_of(mortal), **settings) as crew:
        ends = crew.begin()
        for step, victims in ((3, (0,)), (6, (1,)), (9, (0, 1))):
            crew.reach(step)
            mortal.replace(*victims)
        crew.let(STEPS)
        assert {end() for end in ends} == expected
    assert len(expected) == 1


def test_ranks_that_share_no_memory_keep_their_results_themselves(
    mortal: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(seats_of(mortal))
    monkeypatch.setenv("GRADWIRE_SHM", "off")
    with Crew(seats_of(mortal)) as crew:
        ends = crew.begin()
        for step, victim in ((2, 0), (5, 1), (8, 0)):
            crew.reach(step)
            mortal.replace(victim)
        crew.let(STEPS)
        assert {end() for end in ends} == expected


@pytest.mark.parametrize("mortal", [{"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}], indirect=True)
def test_a_daemon_killed_while_nothing_is_under_way_is_found_again(mortal: Mortal) -> None:
    with Crew(seats_of(mortal)) as crew:
        mortal.replace(0)
        mortal.replace(1)
        waiting = [session.all_reduce(torch.ones(4)) for session in crew.sessions]
        assert [future.wait().tolist() for future in waiting] == [[1.0] * 4] * 3
        assert [query.status(each).jobs[0].failure for each in mortal.addresses] == ["", ""]
        assert all(resumes(each) >= 1 for each in mortal.addresses)


@pytest.mark.case("R09")
def test_who_waits_for_a_daemon_finds_it_soon_after_it_is_back(mortal: Mortal) -> None:
    with Crew(seats_of(mortal)) as crew:
        mortal.kill(0)
        waiting = [session.all_reduce(torch.ones(4)) for session in crew.sessions]
        # Longer than any back-off of a connection would take to reach its end.
        time.sleep(6)
        mortal.revive(0)
        began = time.monotonic()
        for future in waiting:
            assert future.wait().tolist() == [1.0] * 4
        assert time.monotonic() - began < 10


def test_a_daemon_that_does_not_come_back_is_named_when_the_time_is_over(
    mortal: Mortal,
) -> None:
    with Crew(seats_of(mortal), resume=2.0) as crew:
        mortal.kill(0)
        began = time.monotonic()
        waiting = [session.all_reduce(torch.ones(4)) for session in crew.sessions]
        for rank, future in enumerate(waiting):
            with pytest.raises(gradwire.LostError) as caught:
                future.wait()
            named = mortal.addresses[0] if rank < 2 else "node 0 at 127.0.0.1:"
            assert named in str(caught.value)
        assert time.monotonic() - began < 20
        with pytest.raises(gradwire.LostError):
            crew.sessions[0].all_reduce(torch.ones(1))
        # The one that lives takes the next job.
        with Crew([mortal.addresses[1]]) as alone:
            assert alone.sessions[0].all_reduce(torch.ones(2)).wait().tolist() == [1.0, 1.0]


def test_a_session_can_be_closed_while_its_daemon_is_gone(mortal: Mortal) -> None:
    with Crew(seats_of(mortal)) as crew:
        future = crew.sessions[0].all_reduce(torch.ones(4))
        mortal.kill(0)
        began = time.monotonic()
        crew.sessions[0].close()
        with pytest.raises(gradwire.LostError, match="closed"):
            future.wait()
        assert time.monotonic() - began < 10


def test_letters_under_way_fail_and_later_ones_arrive(mortal: Mortal) -> None:
    with Crew(seats_of(mortal)) as crew:
        first, _, last = crew.sessions
        answer = first.receive(torch.empty(3), source=2)
        mortal.replace(0)
        with pytest.raises(gradwire.LostError):
            answer.wait()
        waiting = [session.all_reduce(torch.ones(1)) for session in crew.sessions]
        assert [future.wait().item() for future in waiting] == [1.0, 1.0, 1.0]
        got = torch.empty(3)
        sent, received = last.send(torch.arange(3.0), 0), first.receive(got, source=2)
        assert received.wait() == 2
        sent.wait()
        assert got.tolist() == [0.0, 1.0, 2.0]


def test_nothing_is_left_of_a_job_that_was_taken_up_again(
    mortal: Mortal,
) -> None:
    folder = os.environ.get("GRADWIRE_SHM_DIR", "/dev/shm")  # noqa: S108 - where it lies
    with Crew(seats_of(mortal), wire="int8") as crew:
        names = {name for name in os.listdir(folder) if name.endswith("-keep")}
        mortal.replace(0)
        waiting = [session.all_reduce(torch.ones(9), name="x") for session in crew.sessions]
        assert [len(future.wait()) for future in waiting] == [9, 9, 9]
    stems = {name.removesuffix("-keep") for name in names}
    deadline = time.monotonic() + 10
    while left := [name for name in os.listdir(folder) if name.rsplit("-", 1)[0] in stems]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
