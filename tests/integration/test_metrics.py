"""What daemons' metrics say while jobs come and go, and daemons do."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

import gradwire
from gradwire_ops import query
from gradwire_ops.children import stop
from gradwire_ops.cluster import Cluster, await_ready, cluster, start
from gradwire_ops.place import HERE
from gradwire_proto.addresses import split_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    import grpc

SETTINGS = {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0", "GRADWIRE_CHUNK_BYTES": str(1 << 20)}
JOBS = int(os.environ.get("GRADWIRE_TEST_JOBS", "60"))
SECONDS = 10.0
OPEN = "application/openmetrics-text; version=1.0.0"

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    with cluster(2, SETTINGS) as running:
        yield running


def text(address: str, accept: str = "") -> str:
    page = query.status(address).metrics
    with closing(http.client.HTTPConnection(*split_address(page), timeout=SECONDS)) as line:
        line.request("GET", "/metrics", headers={"Accept": accept})
        return line.getresponse().read().decode()


def scrape(address: str) -> Page:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text(address))
        for sample in family.samples
    }


def value(page: Page, name: str, **labels: str) -> float | None:
    return page.get((name, frozenset(labels.items())))


def figures(page: Page, *names: str, **labels: str) -> list[float]:
    found = [value(page, f"gradwire_{name}", **labels) for name in names]
    known = [number for number in found if number is not None]
    assert len(known) == len(names), found
    return known


@contextmanager
def job(addresses: tuple[str, ...], wire: str = "exact") -> Iterator[list[gradwire.Session]]:
    """One rank at each of these, after a round."""
    store, world_size = dist.HashStore(), len(addresses)

    def one(rank: int) -> gradwire.Session:
        return gradwire.connect(
            store=store, rank=rank, world_size=world_size, daemon=addresses[rank], wire=wire
        )

    with ExitStack() as stack, ThreadPoolExecutor(world_size) as pool:
        sessions = [stack.enter_context(each) for each in pool.map(one, range(world_size))]
        reduce(sessions, 1 << 18)
        yield sessions


def reduce(sessions: list[gradwire.Session], elements: int) -> None:
    for each in [session.all_reduce(torch.ones(elements), name="t") for session in sessions]:
        each.wait()


def await_idle(address: str) -> None:
    end = time.monotonic() + SECONDS
    while query.status(address).jobs:
        assert time.monotonic() < end
        time.sleep(0.01)


def counters(page: Page) -> Page:
    ends = ("_total", "_count", "_sum", "_bucket")
    return {key: number for key, number in page.items() if key[0].endswith(ends)}


def falls(pages: list[Page]) -> list[str]:
    """Where a counter was lower than ever before in the same life of the daemon."""
    fallen, highest, life = [], Page(), None
    for page in pages:
        if value(page, "process_start_time_seconds") != life:
            life, highest = value(page, "process_start_time_seconds"), Page()
        for key, number in counters(page).items():
            if number < highest.get(key, 0.0):
                fallen.append(f"{key} fell from {highest[key]} to {number}")
            highest[key] = max(number, highest.get(key, 0.0))
    return fallen


def lives(pages: list[Page]) -> list[float | None]:
    return list(dict.fromkeys(value(page, "process_start_time_seconds") for page in pages))


def some_jobs(nodes: Cluster) -> list[Page]:
    """What the first node's page says, again and again, while jobs come and go."""
    here, pages, over = nodes.addresses[0], list[Page](), Event()

    def watch() -> None:
        while not over.wait(0.1):
            pages.append(scrape(here))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        for number in range(6):
            with job((here, *nodes.addresses) if number % 2 else nodes.addresses[:1]):
                time.sleep(0.15)
        over.set()
        watching.result()
    return [*pages, scrape(here)]


def came_in(page: Page) -> float:
    return figures(page, "local_bytes_total", direction="in")[0]


@pytest.mark.case("E13")
def test_counters_fall_only_where_the_daemon_restarts(nodes: Cluster) -> None:
    began, here = time.time(), nodes.addresses[0]
    before = some_jobs(nodes)
    assert stop([nodes.daemons[0]]) == []
    again = start(nodes.folder, 0, SETTINGS, HERE, life=1)
    try:
        await_ready([again], [here])
        after = [scrape(here), *some_jobs(nodes)]
    finally:
        assert stop([again]) == []
    assert falls([*before, *after]) == []
    first, second = lives([*before, *after])
    assert first is not None
    assert second is not None
    assert first - 60 < began < second < time.time()
    assert came_in(after[0]) == 0, "it does begin anew"
    assert came_in(before[-1]) == came_in(after[-1]) > 0


def test_many_short_jobs_leave_the_page_as_large_as_before(nodes: Cluster) -> None:
    here = nodes.addresses[0]
    sizes = []
    for number in range(JOBS):
        with job(nodes.addresses, wire="int8" if number % 2 else "exact"):
            pass
        await_idle(here)
        if number in {1, JOBS - 1}:
            sizes.append(set(scrape(here)))
    assert sizes[0] == sizes[1]


def test_links_ranks_and_wires_are_shown_while_a_job_has_them(nodes: Cluster) -> None:
    here, there = nodes.addresses
    with job((here, here, there), wire="int8") as sessions:
        for _ in range(20):
            reduce(sessions, 1 << 22)
        time.sleep(1.1)
        # The pulse goes on meanwhile: what it measures is what it was before, or after.
        before, page, status = query.status(here), scrape(here), query.status(here)
        ((link,), ranks) = status.jobs[0].links, status.jobs[0].ranks
        names = "link_up", "link_queued_bytes", "link_reopened_total"
        assert figures(page, *names, peer=link.address) == [1, 0, 0]
        speeds = "link_round_trip_seconds", "link_bandwidth_bytes_per_second"
        trip, bandwidth = figures(page, *speeds, peer=link.address)
        assert 0 < trip < 1
        trips = [each.jobs[0].links[0].round_trip_seconds for each in (before, status)]
        assert trip in trips
        assert bandwidth == link.bandwidth
        assert 1e6 < bandwidth < 1e11
        in_flight, limit, missing = figures(
            page, "in_flight_bytes", "in_flight_limit_bytes", "ranks_missing"
        )
        assert (limit, missing) == (8 << 20, 0)
        assert 0 <= in_flight <= limit
        last = [figures(page, "rank_last_arrivals_total", rank=rank)[0] for rank in "01"]
        assert last == [rank.last_arrivals for rank in ranks]
        assert sum(last) >= 10
    await_idle(here)
    gone = ("gradwire_link_", "gradwire_peer_", "gradwire_rank_", "gradwire_codec_")
    assert [key for key in scrape(here) if key[0].startswith(gone)] == []


def test_a_daemon_that_stops_says_what_has_ended_until_it_is_gone(nodes: Cluster) -> None:
    here = nodes.addresses[0]
    page, daemon = split_address(query.status(here).metrics), nodes.daemons[0]
    seen: list[tuple[int, bytes]] = []
    with ThreadPoolExecutor(1) as pool, job((here,)), job((here,)):
        # A call that goes on holds the end up for a moment.
        calls: list[grpc.Call] = []
        tracing = pool.submit(query.trace, here, 60.0, calls)
        while not calls:
            time.sleep(0.01)
        calls[0].initial_metadata()  # comes with the first answer
        daemon.signal(signal.SIGTERM)
        end = time.monotonic() + SECONDS
        with suppress(OSError):
            while time.monotonic() < end:
                with closing(http.client.HTTPConnection(*page, timeout=SECONDS)) as line:
                    line.request("GET", "/status.json")
                    answer = line.getresponse()
                    seen.append((answer.status, answer.read()))
        tracing.result()
    assert {status for status, _ in seen} == {200}
    last = json.loads(seen[-1][1])
    assert last["jobs"] == []
    assert any("is stopping" in event["text"] for event in last["events"])


def test_what_a_wire_saves_and_loses_is_shown(nodes: Cluster) -> None:
    with job(nodes.addresses, wire="int8") as sessions:
        reduce(sessions, 1 << 20)
        page = scrape(nodes.addresses[0])
        peer = query.status(nodes.addresses[0]).jobs[0].links[0].address
        names = "codec_raw_bytes_total", "codec_encoded_bytes_total", "codec_error_ratio"
        raw, encoded, error = figures(page, *names, wire="int8")
        assert 3 < raw / encoded <= 4
        assert error < 0.02
        for way in ("sent", "received"):
            labels = {"peer": peer, "direction": way}
            assert figures(page, "peer_payload_bytes_total", **labels) == [raw]
            assert figures(page, "peer_bytes_total", **labels)[0] >= encoded


def test_a_slow_round_leaves_its_generation_and_number(nodes: Cluster) -> None:
    store = dist.HashStore()

    def sit(rank: int) -> str:
        address = nodes.addresses[rank]
        with gradwire.connect(store=store, rank=rank, world_size=2, daemon=address) as session:
            session.all_reduce(torch.ones(5)).wait()
            time.sleep(0.3 * rank)
            session.all_reduce(torch.ones(5)).wait()
            return session.generation

    with ThreadPoolExecutor(2) as pool:
        generation, _ = pool.map(sit, range(2))
    families = openmetrics(  # type: ignore[no-untyped-call]
        text(nodes.addresses[0], OPEN)
    )
    examples = [
        sample.exemplar.labels
        for family in families
        for sample in family.samples
        if sample.name == "gradwire_round_seconds_bucket" and sample.exemplar
    ]
    # On a busy machine the first may be slow, too.
    assert {"generation": generation[:64], "round": "1"} in examples
