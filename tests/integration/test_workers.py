"""Daemons of several processes, and tensors that are urgent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.request import ProxyHandler, build_opener

import grpc
import psutil
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from gradwire import LostError, MismatchError, Session
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster

ThreadsOver = Callable[[Sequence[str]], Callable[..., list[Any]]]

SIZES = (0, 1, 5, 1 << 18, (1 << 20) + 3, (1 << 22) + 7)
LARGE = (1 << 20) + 3
LAYOUT = (2, 1)

without_proxy = build_opener(ProxyHandler({})).open


PAIR = {"GRADWIRE_WORKERS": "2", "GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}
"""Two workers, and a metrics page."""


@pytest.fixture(params=[1, 2, 4])
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(2, {"GRADWIRE_WORKERS": str(request.param)}) as running:
        yield running


@pytest.fixture(scope="module")
def pairs() -> Iterator[Cluster]:
    """Two nodes with two workers each."""
    with cluster(2, PAIR) as running:
        yield running


@pytest.fixture
def doomed() -> Iterator[Cluster]:
    """The same, for a test that kills."""
    with cluster(2, PAIR) as running:
        yield running


def ramp(elements: int) -> torch.Tensor:
    return torch.arange(elements, dtype=torch.float32).remainder_(1000)


def train_on(session: Session) -> None:
    """For five seconds, or until it fails."""
    began = time.monotonic()
    while time.monotonic() - began < 5.0:
        session.all_reduce(torch.ones(LARGE)).wait()


def test_every_size_comes_back_whole_whatever_the_number_of_workers(
    nodes: Cluster, threads_over: ThreadsOver
) -> None:
    def work(session: Session) -> None:
        for size in SIZES:
            tensor = ramp(size) * (session.rank + 1)
            session.all_reduce(tensor, "sum").wait()
            assert torch.equal(tensor, ramp(size) * 6)
            whole = torch.zeros(size)
            start, stop = (size * (session.rank + k) // 3 for k in (0, 1))
            whole[start:stop] = ramp(size)[start:stop]
            session.all_gather(whole, (start, stop)).wait()
            assert torch.equal(whole, ramp(size))

    threads_over(nodes.addresses)(LAYOUT, work)


def test_many_in_flight_urgent_or_not_all_come_back(
    pairs: Cluster, threads_over: ThreadsOver
) -> None:
    def work(session: Session) -> None:
        flying = [
            (value, session.all_reduce(torch.full((size,), float(value)), "sum", urgent=urgent))
            for value in range(12)
            for size, urgent in ((3, False), (LARGE, False), (3, True), (LARGE, True))
        ]
        for value, future in reversed(flying):
            assert future.wait().unique().tolist() == [3.0 * value]

    threads_over(pairs.addresses)(LAYOUT, work)


def test_columns_of_a_matrix_are_spread_and_come_back(
    pairs: Cluster, threads_over: ThreadsOver
) -> None:
    def work(session: Session) -> None:
        matrix = ramp(2 << 20).view(1024, 2048).t()
        expected = matrix * 3
        session.all_reduce(matrix, "sum").wait()
        assert torch.equal(matrix, expected)

    threads_over(pairs.addresses)(LAYOUT, work)


def test_ranks_without_shared_memory_use_the_workers_too(
    pairs: Cluster, threads_over: ThreadsOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", "off")

    def work(session: Session) -> str:
        assert session.all_reduce(torch.ones(LARGE), "sum").wait().unique().tolist() == [3.0]
        return session.path

    assert set(threads_over(pairs.addresses)(LAYOUT, work)) == {"stream"}


def test_a_large_mismatch_is_one_error_and_the_session_goes_on(
    pairs: Cluster, threads_over: ThreadsOver
) -> None:
    def work(session: Session) -> None:
        odd = session.rank == 2
        with pytest.raises(MismatchError, match="rank"):
            session.all_reduce(torch.ones(LARGE), "max" if odd else "sum").wait()
        for _ in range(3):
            assert session.all_reduce(torch.ones(1), "sum").wait().item() == 3.0

    threads_over(pairs.addresses)(LAYOUT, work)


def test_a_worker_that_dies_ends_the_job_and_its_daemon(
    doomed: Cluster, threads_over: ThreadsOver
) -> None:
    (worker,) = psutil.Process(doomed.daemons[0].pid).children()

    def work(session: Session) -> None:
        session.all_reduce(torch.ones(LARGE)).wait()
        if session.rank == 0:
            os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(LostError, match=r"lost|gone|stopping"):
            train_on(session)

    threads_over(doomed.addresses)(LAYOUT, work)
    deadline = time.monotonic() + 10.0
    while doomed.daemons[0].exit_code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert doomed.daemons[0].exit_code == 1


def test_workers_die_with_their_daemon_however_that_ends(doomed: Cluster) -> None:
    (worker,) = psutil.Process(doomed.daemons[0].pid).children()
    os.kill(doomed.daemons[0].pid, signal.SIGKILL)
    assert psutil.wait_procs([worker], timeout=10.0)[1] == []


def test_a_signal_to_all_processes_at_once_is_no_loss(doomed: Cluster) -> None:
    """As Ctrl-C sends it, and whoever stops a service by its processes."""
    daemon = doomed.daemons[0]
    with grpc.insecure_channel(doomed.addresses[0]) as channel:
        watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert next(watch(b"", timeout=60.0))
        os.killpg(os.getpgid(daemon.pid), signal.SIGTERM)
        deadline = time.monotonic() + 10.0
        while daemon.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.05)
    assert daemon.exit_code == 0
    assert "is gone" not in daemon.last_words(50)


def test_one_metrics_page_has_all_workers(pairs: Cluster, threads_over: ThreadsOver) -> None:
    def work(session: Session) -> list[float]:
        before = counted() if session.rank == 0 else []
        session.all_reduce(torch.ones(1)).wait()
        session.all_reduce(torch.ones(LARGE)).wait()
        session.all_reduce(torch.ones(1)).wait()
        now = counted() if session.rank == 0 else []
        return [one - other for one, other in zip(now, before, strict=True)]

    def counted() -> list[float]:
        page = query.status(pairs.addresses[0]).metrics
        with without_proxy(f"http://{page}/metrics") as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = next(each for each in families if each.name == "gradwire_local_bytes").samples
        found = {
            sample.labels["worker"]: sample.value
            for sample in samples
            if sample.labels["direction"] == "in" and sample.name.endswith("_total")
        }
        assert set(found) == {"0", "1"}
        return list(found.values())

    counts, *_ = threads_over(pairs.addresses)(LAYOUT, work)
    # Two ranks bring their tensors here; half of each goes to either worker.
    assert all(0.8 * 4 * LARGE <= count <= 1.2 * 4 * LARGE for count in counts)


def test_the_status_is_that_of_all_workers(pairs: Cluster, threads_over: ThreadsOver) -> None:
    def work(session: Session) -> list[float]:
        for _ in range(3):
            session.all_reduce(torch.ones(LARGE)).wait()
        if session.rank:
            session.all_reduce(torch.ones(1)).wait()
            return []
        (job,) = query.status(pairs.addresses[0]).jobs
        session.all_reduce(torch.ones(1)).wait()
        (link,) = job.links
        return [job.rounds_done, link.bytes_sent, *(rank.sequences for rank in job.ranks)]

    (rounds, sent, *sequences), *_ = threads_over(pairs.addresses)(LAYOUT, work)
    # Each tensor is cut in two, and each half is a collective of a worker's own.
    assert sequences[0] == 6
    assert rounds == 6
    assert sent == pytest.approx(3 * 4 * LARGE, rel=0.2)


def test_a_rank_that_has_left_is_missed_by_what_is_urgent(
    pairs: Cluster, threads_over: ThreadsOver
) -> None:
    def work(session: Session) -> None:
        session.all_reduce(torch.ones(1), urgent=True).wait()
        if session.rank == 1:
            session.close()
            return
        with pytest.raises(LostError, match="rank 1 left"):
            session.all_reduce(torch.ones(1), urgent=True).wait()

    threads_over(pairs.addresses)(LAYOUT, work)
