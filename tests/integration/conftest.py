"""Jobs on this machine: daemons that play nodes, and ranks that are threads or processes.

`in_threads` is for Session: cheap, and tests may share objects between ranks. `in_processes` is
for DDP, which allows one rank a process.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import runpy
import shutil
import socket
import subprocess
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    InThreads = Callable[..., list[Any]]
    InProcesses = Callable[..., list[Any]]
    Scraping = Callable[[list[str]], AbstractContextManager[Callable[[str], list[Any]]]]

NODES = 4
CREW = 4
PATIENCE_SECONDS = 60.0
SMALL_CHUNK_BYTES = 4096
CREW_FILE = Path(__file__).with_name("crew.py")


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_the_users() -> Iterator[None]:
    """What a developer has set for his own jobs is not for the tests'."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
            if not name.startswith("GRADWIRE_TEST_"):
                patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def daemons(no_settings_of_the_users: None) -> Iterator[Cluster]:
    """Four nodes with default settings."""
    with cluster(NODES) as nodes:
        yield nodes


@pytest.fixture(scope="session", params=["ring", "tree", "direct", "one-shot"])
def scheduled(
    request: pytest.FixtureRequest, no_settings_of_the_users: None
) -> Iterator[Cluster]:
    """Four nodes with one schedule, and chunks so small that a few numbers are several."""
    settings = {
        "GRADWIRE_SCHEDULE": request.param,
        "GRADWIRE_CHUNK_BYTES": str(SMALL_CHUNK_BYTES),
    }
    with cluster(NODES, settings) as nodes:
        yield nodes


def _seats(addresses: Sequence[str], layout: Sequence[int]) -> list[str]:
    """The daemon of each rank; layout has the number of ranks of each node."""
    nodes = zip(addresses, layout, strict=False)
    return [address for address, ranks in nodes for _ in range(ranks)]


# -- a Prometheus


@pytest.fixture
def prometheus(tmp_path: Path) -> Scraping:
    """prometheus(targets): a real server that scrapes them; see scraping."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    return partial(scraping, tmp_path)


@contextmanager
def scraping(folder: Path, targets: list[str]) -> Iterator[Callable[[str], list[Any]]]:
    """A server that scrapes these every second. Ask it by calling: what an expression gives
    now, in the words of its API; nothing while the server starts.
    """
    config = folder / "prometheus.yml"
    # JSON is YAML.
    scrape = {"job_name": "gradwire", "static_configs": [{"targets": targets}]}
    config.write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    )
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            ["prometheus", f"--web.listen-address={address}", *options], stdout=log, stderr=log
        )
        try:
            yield partial(_answer, address)
        finally:
            server.terminate()
            server.wait(10)


def _answer(address: str, expression: str) -> list[Any]:
    try:
        with build_opener(ProxyHandler({})).open(
            f"http://{address}/api/v1/query?query={quote(expression)}", timeout=5
        ) as page:
            answer: list[Any] = json.load(page)["data"]["result"]
    except HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            return []
        raise  # an URLError as well, but one that says that the question was wrong
    except URLError:
        return []
    return answer


# -- ranks as threads


@pytest.fixture
def in_threads(daemons: Cluster) -> InThreads:
    """in_threads(layout, work, timeout=...): work(session) on each rank; see run_in_threads."""
    return partial(run_in_threads, daemons.addresses)


@pytest.fixture
def in_scheduled_threads(scheduled: Cluster) -> InThreads:
    """in_threads, once for each schedule."""
    return partial(run_in_threads, scheduled.addresses)


@pytest.fixture
def threads_over() -> Callable[[Sequence[str]], InThreads]:
    """threads_over(addresses): in_threads for a test's own daemons."""
    return lambda addresses: partial(run_in_threads, addresses)


def run_in_threads(
    addresses: Sequence[str],
    layout: Sequence[int],
    work: Callable[[gradwire.Session], Any],
    *,
    timeout: float = 10.0,
) -> list[Any]:
    """What work(session) returns on each rank; layout has the number of ranks of each node.

    Raises the first error of any rank, once all ranks have ended.
    """
    store = dist.HashStore()
    seats = _seats(addresses, layout)
    results: list[Any] = [None] * len(seats)
    errors: list[BaseException] = []

    def sit(rank: int) -> None:
        try:
            with gradwire.connect(
                store=store,
                rank=rank,
                world_size=len(seats),
                daemon=seats[rank],
                timeout=timeout,
                connect_timeout=20.0,
            ) as session:
                results[rank] = work(session)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    ranks = [
        threading.Thread(target=sit, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(len(seats))
    ]
    torch.set_num_threads(1)
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for rank in ranks:
        rank.join(max(0.0, deadline - time.monotonic()))
    late = [rank.name for rank in ranks if rank.is_alive()]
    if late:
        pytest.fail(f"still running after {PATIENCE_SECONDS:g} s: {', '.join(late)}")
    if errors:
        raise errors[0]
    return results


# -- ranks as processes


@pytest.fixture
def in_processes(crew: Crew, daemons: Cluster, request: pytest.FixtureRequest) -> InProcesses:
    """in_processes(layout, function, *arguments, environments=...): see Crew.run.

    The function is one of the test file's own: function(session, *arguments).
    """
    return partial(crew.run, daemons.addresses, request.path)


@pytest.fixture
def in_groups(crew: Crew, daemons: Cluster, request: pytest.FixtureRequest) -> InProcesses:
    """in_processes with the backend "grpc": function(group, *arguments), and no session."""
    return partial(crew.run, daemons.addresses, request.path, backend="grpc")


@pytest.fixture
def processes_over(
    crew: Crew, request: pytest.FixtureRequest
) -> Callable[[Sequence[str]], InProcesses]:
    """processes_over(addresses): in_processes for a test's own daemons."""
    return lambda addresses: partial(crew.run, addresses, request.path)


@pytest.fixture(scope="session")
def crew(no_settings_of_the_users: None) -> Iterator[Crew]:
    """Rank processes that stay, because importing torch costs seconds."""
    ranks = Crew()
    try:
        yield ranks
    finally:
        ranks.dismiss()


class Crew:
    """Processes that call functions of test files as the ranks of a job."""

    def __init__(self) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._calls = count()
        self._members: list[tuple[BaseProcess, Connection]] = []

    def run(  # noqa: PLR0913 - the fixture gives the first two
        self,
        addresses: Sequence[str],
        path: Path,
        layout: Sequence[int],
        function: Callable[..., Any],
        *arguments: object,
        environments: Sequence[Mapping[str, str]] | None = None,
        patience: float = PATIENCE_SECONDS,
        backend: str = "gloo",
    ) -> list[Any]:
        """What the function returns on each rank: plain values, no tensors.

        Fails the test with the tracebacks of the ranks that failed, in the order in which they
        did. Each rank has its own additions to the environment.
        """
        seats = _seats(addresses, layout)
        self._hire(len(seats))
        store = (self._store.port, f"call{next(self._calls)}")
        for rank, address in enumerate(seats):
            order = {
                "place": (rank, len(seats)),
                "store": store,
                "daemon": address,
                "environment": dict(environments[rank]) if environments else {},
                "call": (str(path), function.__name__, arguments),
                "backend": backend,
            }
            self._members[rank][1].send(order)
        return self._collect(len(seats), patience)

    def dismiss(self) -> None:
        """End all processes, at once."""
        for process, orders in self._members:
            orders.close()
            process.kill()
            process.join(PATIENCE_SECONDS)
            process.close()
        self._members.clear()

    def _hire(self, ranks: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        assert ranks <= CREW, f"the crew has {CREW}, and {ranks} ranks were asked for"
        missing = ranks - len(self._members)
        for _ in range(CREW if missing > 0 and not self._members else max(0, missing)):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=runpy.run_path,
                args=(str(CREW_FILE),),
                kwargs={"init_globals": {"ORDERS": theirs}, "run_name": "crew"},
                daemon=True,
            )
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def _collect(self, ranks: int, patience: float) -> list[Any]:
        deadline = time.monotonic() + patience
        results: dict[int, Any] = {}
        failures: list[str] = []
        waiting = {rank: self._members[rank][1] for rank in range(ranks)}
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            ready = multiprocessing.connection.wait(list(waiting.values()), left)
            if not ready:
                self.dismiss()
                late = ", ".join(map(str, waiting))
                failures.append(f"still running after {patience:g} s: rank {late}")
                break
            for rank in [rank for rank, orders in waiting.items() if orders in ready]:
                good, outcome = waiting.pop(rank).recv()
                if good:
                    results[rank] = outcome
                else:
                    failures.append(f"rank {rank}:\n{outcome}")
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
        return [results[rank] for rank in range(ranks)]
