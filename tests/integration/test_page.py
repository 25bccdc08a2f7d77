"""The status page in a real browser, of daemons with a real job."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener

import pytest
import torch
import torch.distributed as dist
from playwright.sync_api import expect, sync_playwright
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import gradwire
from gradwire_ops import query
from gradwire_ops.children import Child, read_all, stop
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto.stages import STAGES
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server import metrics_page
from gradwire_server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

PROGRAMS = Path(__file__).parent / "programs"
CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_MILLISECONDS = 15_000
NOTICE_MILLISECONDS = 3_000
WORLD = 3
VICTIM = 1
PHONE = {"width": 360, "height": 740}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

without_proxy = build_opener(ProxyHandler({})).open


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(2, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as running:
        yield running


class Visit:
    """A page in a window of its own, and all that it asks for and complains of."""

    def __init__(self, browser: Browser, address: str, **window: Any) -> None:  # noqa: ANN401
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(**window)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"http://{address}/")


@contextmanager
def visiting(
    browser: Browser,
    address: str,
    **window: Any,  # noqa: ANN401 - playwright's own
) -> Iterator[Page]:
    """In the end: nothing was asked of anybody else, and nothing went wrong."""
    visit = Visit(browser, address, **window)
    try:
        yield visit.page
        assert visit.complaints == []
        elsewhere = [url for url in visit.requests if not url.startswith(f"http://{address}/")]
        assert [url for url in elsewhere if not url.startswith("data:")] == []
    finally:
        visit.page.close()


@contextmanager
def shown(answer: pb.StatusResponse) -> Iterator[str]:
    """The address of a page that shows this."""
    metrics = Metrics(CollectorRegistry(), "0.1")
    with metrics_page.serving("127.0.0.1:0", metrics, [], lambda: answer) as address:
        yield address


class Job:
    """Two ranks at the first node, of which one is a process, and one at the second."""

    def __init__(self, nodes: Cluster, stack: ExitStack, log: Path) -> None:
        self._nodes = nodes
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.victim = self._start(log)
        stack.callback(stop, [self.victim])
        with ThreadPoolExecutor(WORLD) as pool:
            self.sessions = list(pool.map(self._connect, (0, 2)))
        for session in self.sessions:
            stack.callback(session.close)

    def _connect(self, rank: int) -> gradwire.Session:
        store = dist.TCPStore("127.0.0.1", self._store.port, timeout=timedelta(seconds=60))
        daemon = self._nodes.addresses[rank // 2]
        return gradwire.connect(store=store, rank=rank, world_size=WORLD, daemon=daemon)

    def _start(self, log: Path) -> Child:
        paths = [str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": str(VICTIM),
            "WORLD_SIZE": str(WORLD),
            "GRADWIRE_DAEMON": self._nodes.addresses[0],
        }
        return Child("the victim", ["rank", "forever", "4096"], environment, log, piped=True)

    def run_to_the_end(self) -> None:
        """50 rounds; the process has brought its part of one more, and waits."""

        def work(session: gradwire.Session) -> None:
            for _ in range(50):
                session.all_reduce(torch.ones(4096)).wait()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, self.sessions))

    def run_to_the_failure(self, killed: threading.Event) -> list[str]:
        """Some rounds, then the process is killed; what the others hear."""

        def work(session: gradwire.Session) -> str:
            try:
                while True:
                    session.all_reduce(torch.ones(4096)).wait()
            except gradwire.LostError as error:
                return str(error)

        with ThreadPoolExecutor(2) as pool:
            hearing = [pool.submit(work, session) for session in self.sessions]
            for _, line in read_all([self.victim], [], 40):
                if json.loads(line)["event"] == "round":
                    break
            self.victim.signal(signal.SIGKILL)
            killed.set()
            return [each.result() for each in hearing]


def read(address: str, path: str) -> str:
    with without_proxy(f"http://{address}/{path}", timeout=5) as answer:
        return str(answer.read().decode())


def metric(address: str, name: str, **labels: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(read(address, "metrics"))
        for sample in family.samples
        if sample.name == name and sample.labels.items() >= labels.items()
    )


def figure_of(page: Page, within: str, name: str) -> str:
    return page.locator(
        f"{within} div", has=page.get_by_text(name, exact=True)
    ).last.inner_text()


def bytes_of(text: str) -> float:
    number, unit = text.split("\n")[1].split()
    return float(number) * float(1024 ** ["B", "KiB", "MiB", "GiB"].index(unit))


def test_the_page_says_what_status_and_metrics_say(
    nodes: Cluster, browser: Browser, tmp_path: Path
) -> None:
    address = query.status(nodes.addresses[0]).metrics
    with ExitStack() as stack:
        job = Job(nodes, stack, tmp_path / "log")
        page = stack.enter_context(visiting(browser, address))
        job.run_to_the_end()
        # Nothing moves any more: what the three say can be compared.
        time.sleep(1.0)
        expect(page.locator(".key")).to_contain_text("50", timeout=PATIENCE_MILLISECONDS)
        page.wait_for_timeout(1500)
        (status,) = json.loads(read(address, "status.json"))["jobs"]
        assert status["rounds_done"] == metric(address, "gradwire_rounds_total") == 50
        assert figure_of(page, ".key", "rounds done") == "rounds done\n50"
        assert page.locator(".ranks tbody tr").count() == metric(
            address, "gradwire_ranks_joined"
        )
        for rank in status["ranks"]:
            row = page.locator(f"[data-rank='{rank['rank']}']").inner_text()
            last = metric(address, "gradwire_rank_last_arrivals_total", rank=str(rank["rank"]))
            cell = page.locator(f"[data-rank='{rank['rank']}'] [data-column='came last']")
            assert int(cell.inner_text()) == rank["last_arrivals"] == last
            assert str(rank["pid"]) in row
        (link,) = status["links"]
        for name, key, way in (
            ("sent", "bytes_sent", "sent"),
            ("received", "bytes_received", "received"),
        ):
            said = bytes_of(figure_of(page, ".links", name))
            assert said == pytest.approx(link[key], rel=0.01)
            counted = metric(address, "gradwire_peer_bytes_total", direction=way)
            assert said == pytest.approx(counted, rel=0.02)
        assert page.locator(".picture .node").count() == 2
        assert page.locator(".picture .dot").count() == WORLD


def test_a_killed_rank_shows_within_three_seconds(
    nodes: Cluster, browser: Browser, tmp_path: Path
) -> None:
    address = query.status(nodes.addresses[0]).metrics
    killed = threading.Event()
    with ExitStack() as stack:
        job = Job(nodes, stack, tmp_path / "log")
        page = stack.enter_context(visiting(browser, address))
        expect(page.locator(".job .state")).to_have_text(
            "running", timeout=PATIENCE_MILLISECONDS
        )
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(job.run_to_the_failure, killed)
            assert killed.wait(40)
            words = f"rank {VICTIM} \\(pid {job.victim.pid} on .*\\) is lost"
            failed = page.locator(".job .troubles").first
            expect(failed).to_contain_text(re.compile(words), timeout=NOTICE_MILLISECONDS)
            for text in running.result():
                assert re.search(words, text)
        # The daemon has forgotten the job; the page has not.
        expect(page.locator(".job .state").first).to_contain_text(
            "ended", timeout=PATIENCE_MILLISECONDS
        )
        expect(failed).to_contain_text(re.compile(words))


def test_a_daemon_that_is_gone_is_said_to_be(browser: Browser) -> None:
    with shown(large()) as address:
        visit = Visit(browser, address)
        expect(visit.page.locator("#pulse-text")).to_have_text("live")
    banner = visit.page.locator("#banner")
    expect(banner).to_contain_text("has not answered since", timeout=PATIENCE_MILLISECONDS)
    assert visit.page.locator(".job").count() == 1, "what it said last is still there"
    visit.page.close()


def large(nodes: int = 3, ranks: int = 8) -> pb.StatusResponse:
    """All fields are set; names are as strangers may choose them."""
    name = "<img src=x onerror=alert(1)>" * 6
    job = pb.JobStatus(
        generation="<b>g</b>",
        world_size=nodes * ranks,
        rounds_done=123456789,
        rounds_open=8,
        rounds_failed=3,
        attempt=2,
        failure=f"rank 1 ({name}) is lost",
        ledger_seconds=len(STAGES),
    )
    for node in range(nodes):
        of_node = range(node * ranks, node * ranks + ranks)
        job.nodes.add(id=name, address=f"10.0.0.{node}:50700", host=name, ranks=of_node)
    for rank in range(ranks):
        job.ranks.add(
            rank=rank,
            host=name,
            pid=4_000_000 + rank,
            joined=rank != 2,
            straggling=rank / ranks,
            last_arrivals=10**9,
            steps=7,
            step_seconds=12.3456,
            communication=0.999,
        )
    for node in range(1, nodes):
        link = job.links.add(node=node, address=f"{name}:50700", connected=True, connections=64)
        for field in ("bytes_sent", "bytes_received", "queued_bytes", "resent", "damaged"):
            setattr(link, field, 1 << 50)
        link.sent_rate = link.received_rate = 1.25e10
        link.bandwidth, link.round_trip_seconds = 1e9 / node**2, 0.25
    for stage in STAGES:
        job.stages.add(stage=stage, seconds=1)
    job.stalled.add(sequence=12, seconds=14.2, ranks=[3], whom=name)
    answer = pb.StatusResponse(version=name, node_id=name, address=name, jobs=[job])
    answer.events.add(level="error", text=name, generation=name)
    answer.events.add(level=name, text="a level that is none")
    return answer


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 1), (2, 64), (6, 8), (24, 8)])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(
    browser: Browser, scheme: str, nodes: int, ranks: int
) -> None:
    with (
        shown(large(nodes, ranks)) as address,
        visiting(browser, address, viewport=PHONE, color_scheme=scheme) as page,
    ):
        expect(page.locator(".job")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_light_and_dark_are_the_readers_choice(browser: Browser) -> None:
    brightness = {}
    for scheme in ("light", "dark"):
        with (
            shown(large()) as address,
            visiting(browser, address, color_scheme=scheme) as page,
        ):
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
            brightness[scheme] = sum(map(int, re.findall(r"\d+", colour)[:3]))
    assert brightness["light"] > 600
    assert brightness["dark"] < 150


def test_names_of_strangers_are_text(browser: Browser) -> None:
    with shown(large()) as address, visiting(browser, address) as page:
        expect(page.locator(".job h2")).to_contain_text("<b>g</b>")
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        assert page.locator("img").count() == page.locator("b").count() == 0


def test_who_hears_the_page_is_told_what_the_pictures_show(browser: Browser) -> None:
    with shown(large()) as address, visiting(browser, address) as page:
        expect(page.locator(".job")).to_be_visible()
        picture = page.locator(".picture").get_attribute("aria-label") or ""
        assert "node 2: connected, slower than the others, sends 100 Gbit/s" in picture
        bar = page.locator(".bar").get_attribute("aria-label") or ""
        assert bar.count("11 %") == len(STAGES)


def test_a_rank_that_has_left_is_not_missing(browser: Browser) -> None:
    answer = large()
    answer.jobs[0].ranks[2].left = True
    with shown(answer) as address, visiting(browser, address) as page:
        cell = page.locator("[data-rank='2'] [data-column='state']")
        expect(cell).to_have_text("left")
        assert "missing" not in page.locator(".job").inner_text()


def test_what_is_wrong_is_said_in_words(browser: Browser) -> None:
    with shown(large()) as address, visiting(browser, address) as page:
        said = page.locator(".troubles").inner_text()
        for words in (
            "Rank 2 of this node is missing.",
            "Round 12 has waited 14.2 s for ",
            "Rank 7 holds the others up: they wait for it 88 % of the time.",
            "The link to node 2 is slower than the others, it reaches 2.00 Gbit/s.",
        ):
            expect(page.locator(".troubles")).to_contain_text(words)
            assert words in page.locator(".troubles").inner_text(), said
