"""A real Prometheus reads the metrics of two daemons while a job runs over them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """A server that scrapes these; its address."""
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
            yield address
        finally:
            server.terminate()
            server.wait(10)


def ask(server: str, expression: str) -> dict[str, float]:
    """The values of an expression, by instance; none while the server starts."""
    try:
        with without_proxy(
            f"http://{server}/api/v1/query?query={quote(expression)}", timeout=5
        ) as page:
            result = json.load(page)["data"]["result"]
    except URLError:
        return {}
    return {one["metric"]["instance"]: float(one["value"][1]) for one in result}


def await_values(server: str, expression: str, instances: list[str]) -> list[float]:
    """One value for each instance, as soon as all have one above zero."""
    end = time.monotonic() + SCRAPED_SECONDS
    while True:
        values = ask(server, expression)
        if all(values.get(instance) for instance in instances):
            return [values[instance] for instance in instances]
        assert time.monotonic() < end, f"{expression} is {values}"
        time.sleep(0.1)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_a_real_prometheus_sees_the_job(nodes: Cluster, tmp_path: Path) -> None:
    status = [query.status(address) for address in nodes.addresses]
    pages = [one.metrics for one in status]
    with job(nodes), prometheus(tmp_path, pages) as server:
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
