"""A real Prometheus reads the metrics of two daemons while a job runs over them."""

from __future__ import annotations

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    Server = Callable[[str], list[Any]]
    Scraping = Callable[[list[str]], AbstractContextManager[Server]]

SCRAPED_SECONDS = 20.0

without_proxy = build_opener(ProxyHandler({})).open


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(2, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as running:
        yield running


@contextmanager
def job(nodes: Cluster) -> Iterator[list[gradwire.Session]]:
    """Two ranks at the first node and one at the second, after a few rounds."""
    store = dist.HashStore()
    seats = (nodes.addresses[0], *nodes.addresses)

    def one(rank: int) -> gradwire.Session:
        return gradwire.connect(store=store, rank=rank, world_size=3, daemon=seats[rank])

    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        sessions = [stack.enter_context(each) for each in pool.map(one, range(3))]
        for _ in range(5):
            rounds = [each.all_reduce(torch.ones(1 << 20)) for each in sessions]
            for each in rounds:
                each.wait()
        yield sessions


def ask(server: Server, expression: str) -> dict[str, float]:
    """The values of an expression, by instance; none while the server starts."""
    return {one["metric"]["instance"]: float(one["value"][1]) for one in server(expression)}


def await_values(server: Server, expression: str, instances: list[str]) -> list[float]:
    """One value for each instance, as soon as all have one above zero."""
    end = time.monotonic() + SCRAPED_SECONDS
    while True:
        values = ask(server, expression)
        if all(values.get(instance) for instance in instances):
            return [values[instance] for instance in instances]
        assert time.monotonic() < end, f"{expression} is {values}"
        time.sleep(0.1)


def test_a_real_prometheus_sees_the_job(nodes: Cluster, prometheus: Scraping) -> None:
    status = [query.status(address) for address in nodes.addresses]
    pages = [one.metrics for one in status]
    with job(nodes), prometheus(pages) as server:
        rounds = await_values(server, "sum by (instance) (gradwire_rounds_total)", pages)
        assert rounds[0] == rounds[1] >= 5
        assert await_values(server, "gradwire_ranks_joined", pages) == [2, 1]
        assert await_values(server, "gradwire_jobs", pages) == [1, 1]
        peers = "sum by (instance) (gradwire_peer_bytes_total{direction='%s'})"
        sent = await_values(server, peers % "sent", pages)
        received = await_values(server, peers % "received", pages)
        assert sent == list(reversed(received))
        # Each node sends half of a tensor to be summed, and half of one that is.
        assert min(sent) > 5 * (4 << 20)
        seconds = "sum by (instance) (gradwire_round_seconds_count)"
        assert await_values(server, seconds, pages) == rounds
        await_values(server, "gradwire_build_info", pages)
        await_values(server, "process_resident_memory_bytes", pages)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong_with_the_page(nodes: Cluster) -> None:
    with job(nodes):
        page = query.status(nodes.addresses[0]).metrics
        with without_proxy(f"http://{page}/metrics", timeout=5) as text:
            metrics = text.read()
    result = subprocess.run(
        ["promtool", "check", "metrics"],
        input=metrics,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert b"gradwire_rounds_total" in metrics
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")
