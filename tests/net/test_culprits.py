"""One link is slowed down and one rank dawdles: all that people look at names these two.

Three nodes with a rank each, and a Prometheus and a browser on the first of them. Before, the
job runs as it should, so there is something to compare with.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
import yaml
from playwright.sync_api import sync_playwright
from prometheus_client.parser import text_string_to_metric_families

from gradwire_ops.cluster import cluster
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import gradwire
    from gradwire_ops.cluster import Cluster
    from gradwire_ops.lab import Lab

    Seats = Callable[[Sequence[str]], AbstractContextManager[list[gradwire.Session]]]

DEPLOY = Path(__file__).parents[2] / "deploy"
CHROMIUM = shutil.which("chromium")
NODES = 3
RATE, SLOW_RATE = 500_000_000, 50_000_000
SLOW_NODE, SLOW_RANK = 2, 1
SIZE = 4 << 20
DAWDLE_SECONDS = 2.0
HEALTHY_SECONDS = 14.0
PATIENCE_SECONDS = 25.0
"""Estimates are of the last seconds or half minute: they follow, but not at once."""
PAGE_PORT, PROMETHEUS_PORT = 9470, 9090
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not installed"),
]


class Job:
    """Collectives one after the other, in threads, until it is told to end."""

    def __init__(self) -> None:
        self.dawdles = threading.Event()
        self.ends = threading.Event()

    def work(self, session: gradwire.Session) -> None:
        tensor, ends = torch.ones(SIZE // 4), torch.zeros(1)
        while not ends.item():
            if session.rank == SLOW_RANK and self.dawdles.is_set():
                time.sleep(DAWDLE_SECONDS)
            session.all_reduce(tensor.fill_(1.0)).wait()
            # All ranks end with the same step.
            ends.fill_(float(self.ends.is_set()))
            session.all_reduce(ends, op="max").wait()

    @contextmanager
    def running(self, sessions: Sequence[gradwire.Session]) -> Iterator[None]:
        with ThreadPoolExecutor(len(sessions)) as pool:
            ranks = [pool.submit(self.work, session) for session in sessions]
            try:
                yield
            finally:
                self.ends.set()
                for rank in ranks:
                    rank.result()


class Observer:
    """Sits on the first node, and looks at all of them over the network."""

    def __init__(self, net: Lab, nodes: Cluster) -> None:
        self._net = net
        self._nodes = nodes

    def read(self, url: str) -> bytes:
        def ask() -> bytes:
            with build_opener(ProxyHandler({})).open(url, timeout=10) as answer:
                return bytes(answer.read())

        return self._net.nodes[0].call(ask)

    def page(self, node: int) -> str:
        return f"{self._net.nodes[node].addresses[0]}:{PAGE_PORT}"

    def metrics(self, name: str, label: str) -> dict[tuple[int, str], float]:
        """By node and label, as the nodes' own pages say."""
        return {
            (node, sample.labels[label]): sample.value
            for node in range(NODES)
            for family in text_string_to_metric_families(
                self.read(f"http://{self.page(node)}/metrics").decode()
            )
            for sample in family.samples
            if sample.name == name
        }

    def answer(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Prometheus' own."""
        url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?query={quote(expression)}"
        result = json.loads(self.read(url))["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def nodes_of(self, link: dict[str, str]) -> set[int]:
        """The two ends of what has the labels instance and peer."""
        hosts = {node.addresses[0]: place for place, node in enumerate(self._net.nodes)}
        return {hosts[link[name].split(":")[0]] for name in ("instance", "peer")}

    def printed(self, node: int) -> list[str]:
        """By `gradwire status`."""
        command = ["status", "--daemon", self._nodes.addresses[node]]
        result = subprocess.run(
            [sys.executable, "-m", "gradwire_ops", *command],
            env={**os.environ, "COLUMNS": "250"},
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return result.stdout.splitlines()


@contextmanager
def prometheus(net: Lab, folder: Path) -> Iterator[None]:
    """A server on the first node that scrapes all nodes every second."""
    targets = [f"{node.addresses[0]}:{PAGE_PORT}" for node in net.nodes]
    scrape = {"job_name": "gradwire", "static_configs": [{"targets": targets}]}
    config = folder / "prometheus.yml"
    # JSON is YAML.
    config.write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    )
    options = [
        f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            net.nodes[0].enter(["prometheus", *options]), stdout=log, stderr=log
        )
        try:
            yield
        finally:
            server.terminate()
            server.wait(10)


@contextmanager
def browsing(net: Lab, folder: Path) -> Iterator[Callable[[str], str]]:
    """A browser on the first node: what the page at an address says, as people read it."""
    program = folder / "browser"
    command = " ".join(net.nodes[0].enter([CHROMIUM or ""]))
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)

        def text_of(address: str) -> str:
            page = browser.new_page()
            page.goto(f"http://{address}/")
            page.locator(".job .troubles li").first.wait_for()
            text = page.locator(".job").inner_text()
            page.close()
            return text

        yield text_of
        browser.close()


def panel(board: str, title: str) -> str:
    """What the first panel with this title asks."""
    panels = json.loads((DEPLOY / "grafana" / "dashboards" / f"{board}.json").read_text())
    (asked,) = (
        target["expr"]
        for each in panels["panels"]
        if each["title"] == title
        for target in each["targets"]
    )
    return str(asked).replace("$instance", ".*")


def rule(name: str) -> str:
    """When an alert fires, but for the time that it has to last."""
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    (expression,) = (each["expr"] for each in group["rules"] if each.get("alert") == name)
    return str(expression)


def await_alerts(seen: Observer) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    alerts = {"GradwireLinkSlow": 2, "GradwireStraggler": 1}
    while time.monotonic() < end:
        if all(len(seen.answer(rule(name))) >= series for name, series in alerts.items()):
            return
        time.sleep(0.5)
    pytest.fail(f"{ {name: seen.answer(rule(name)) for name in alerts} }")


def check_metrics(seen: Observer, before: dict[tuple[int, str], float]) -> None:
    bandwidth = seen.metrics("gradwire_link_bandwidth_bytes_per_second", "peer")
    known = sorted((reached, link) for link, reached in bandwidth.items() if reached)
    slow = [seen.nodes_of({"instance": seen.page(n), "peer": p}) for _, (n, p) in known]
    # Around a ring: into the slow node, out of it, and past it.
    assert [SLOW_NODE in each for each in slow] == [True, True, False], known
    straggling = seen.metrics("gradwire_rank_straggling", "rank")
    assert max(straggling, key=straggling.__getitem__) == (SLOW_RANK, str(SLOW_RANK))
    grown = {
        key: spent - before[key]
        for key, spent in seen.metrics("gradwire_step_seconds_total", "stage").items()
    }
    for node in {*range(NODES)} - {SLOW_RANK}:
        own = {stage: seconds for (at, stage), seconds in grown.items() if at == node}
        assert max(own, key=own.__getitem__) in {"wait_peers", "wire"}, own
        assert own["wait_peers"] > 0.2 * sum(own.values()), own
        assert own["wait_peers"] + own["wire"] > 0.5 * sum(own.values()), own


def check_dashboards(seen: Observer) -> None:
    matrix = [each for each in seen.answer(panel("gradwire-links", "Bandwidth")) if each[1]]
    slowest = sorted(matrix, key=lambda each: each[1])
    places = [SLOW_NODE in seen.nodes_of(link) for link, _ in slowest]
    assert places == [True, True, False], slowest
    assert slowest[1][1] < slowest[2][1] / 2
    ranks = seen.answer(panel("gradwire-failures", "Stragglers"))
    worst, score = max(ranks, key=lambda each: each[1])
    assert worst["rank"] == str(SLOW_RANK)
    assert all(other < score / 2 for rank, other in ranks if rank != worst)


def check_alerts(seen: Observer) -> None:
    slow = seen.answer(rule("GradwireLinkSlow"))
    assert all(SLOW_NODE in seen.nodes_of(link) for link, _ in slow), slow
    assert len(slow) == 2, "out of the slow node, and into it"
    ((straggler, _),) = seen.answer(rule("GradwireStraggler"))
    assert straggler["rank"] == str(SLOW_RANK)


def check_pages(seen: Observer, text_of: Callable[[str], str]) -> None:
    """Each node has its own: of its ranks, and of what it receives."""
    first, second, third = (text_of(seen.page(node)) for node in range(NODES))
    assert f"The link to node {SLOW_NODE} is slower than it was" in first
    assert "The link to node 1 " not in first
    assert "The link to node " not in second
    assert "The link to node 1 is slower than it was" in third
    assert f"Rank {SLOW_RANK} holds the others up" in second
    assert "holds the others up" not in first + third


def check_status(seen: Observer) -> None:
    for node, peer in ((0, SLOW_NODE), (1, None), (SLOW_NODE, 1)):
        lines = seen.printed(node)
        slow = [line for line in lines if "slower than it was" in line]
        assert [line.split("│")[1].strip() for line in slow] == [str(peer)] * bool(peer), lines
        late = [line for line in lines if "holds others up" in line]
        assert [line.split("│")[1].strip() for line in late] == ["1"] * (node == SLOW_RANK)


@pytest.mark.timeout(150)
def test_a_slow_link_and_a_slow_rank_are_named_by_all_that_people_look_at(
    seats: Seats, tmp_path: Path
) -> None:
    job = Job()
    settings = {"GRADWIRE_METRICS_LISTEN": f"0.0.0.0:{PAGE_PORT}"}
    with (
        lab(LabPlan(NODES, (RATE,) * NODES)) as net,
        cluster(NODES, settings, net.places) as nodes,
        prometheus(net, tmp_path),
        browsing(net, tmp_path) as text_of,
        seats(nodes.addresses) as sessions,
        job.running(sessions),
    ):
        seen = Observer(net, nodes)
        time.sleep(HEALTHY_SECONDS)
        assert seen.answer(rule("GradwireLinkSlow")) == []
        assert seen.answer(rule("GradwireStraggler")) == []
        before = seen.metrics("gradwire_step_seconds_total", "stage")
        net.change_rate(SLOW_NODE, SLOW_RATE)
        job.dawdles.set()
        await_alerts(seen)
        check_alerts(seen)
        check_metrics(seen, before)
        check_dashboards(seen)
        check_pages(seen, text_of)
        check_status(seen)
