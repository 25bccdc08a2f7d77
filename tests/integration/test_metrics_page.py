"""The metrics page: of workers that do not answer, and for visitors that are not good ones."""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import psutil
import pytest
from prometheus_client import CollectorRegistry

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server import metrics_page, visitors
from gradwire_server.metrics import Metrics

without_proxy = build_opener(ProxyHandler({})).open


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not http\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nOops",
        b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\ncut short",
    ],
    ids=["nothing", "no http", "an error", "cut short"],
)
def test_a_worker_that_does_not_answer_is_left_out(answer: bytes) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as door:

        def one() -> None:
            there, _ = door.accept()
            with closing(there):
                there.recv(4096)
                there.sendall(answer)

        threading.Thread(target=one, daemon=True).start()
        worker = f"127.0.0.1:{door.getsockname()[1]}"
        own = Metrics(CollectorRegistry(), "0.1")
        with (
            metrics_page.serving("127.0.0.1:0", own, [worker]) as page,
            without_proxy(f"http://{page}/metrics") as read,
        ):
            text = read.read().decode()
    assert 'gradwire_jobs{worker="0"} 0.0' in text
    assert 'worker="1"' not in text


def test_who_never_ends_a_request_is_sent_away_and_is_no_news(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(visitors, "VISIT_SECONDS", 0.2)
    own = Metrics(CollectorRegistry(), "0.1")
    with metrics_page.serving("127.0.0.1:0", own, []) as page:
        host, port = page.split(":")
        for request in (b"", b"GET /metrics HTTP/1.1\r\nHo", b"GET " + b"x" * 70_000):
            with socket.create_connection((host, int(port)), timeout=10) as visitor:
                visitor.sendall(request)
                with suppress(ConnectionResetError):
                    while visitor.recv(4096):
                        pass
        with without_proxy(f"http://{page}/metrics") as read:
            assert "gradwire_jobs 0.0" in read.read().decode()
    assert capfd.readouterr().err == ""


def drip(visitor: socket.socket, seconds: float) -> None:
    """Raises OSError once the other side has closed the connection."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        visitor.sendall(b"x")
        time.sleep(0.05)


def is_closed(visitor: socket.socket) -> bool:
    """Once the other side has done something."""
    try:
        return visitor.recv(100) == b""
    except ConnectionResetError:
        return True


def test_who_sends_a_byte_now_and_then_is_sent_away_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visitors, "VISIT_SECONDS", 0.5)
    own = Metrics(CollectorRegistry(), "0.1")
    with metrics_page.serving("127.0.0.1:0", own, []) as page:
        host, port = page.split(":")
        with socket.create_connection((host, int(port)), timeout=0.05) as visitor:
            visitor.sendall(b"GET /metrics HTTP/1.1\r\nX-Drip: ")
            with pytest.raises(OSError, match=r"Broken pipe|reset"):
                drip(visitor, 15.0)


def test_three_hundred_that_never_end_keep_nobody_out() -> None:
    """And have no more threads and connections than anybody else."""
    own, process = Metrics(CollectorRegistry(), "0.1"), psutil.Process()
    with metrics_page.serving("127.0.0.1:0", own, []) as page, ExitStack() as stack:
        host, port = page.split(":")
        threads, descriptors = threading.active_count(), process.num_fds()
        for _ in range(300):
            visitor = stack.enter_context(socket.create_connection((host, int(port)), 10))
            with suppress(OSError):
                visitor.sendall(b"GET /metrics HTTP/1.1\r\nX-Drip: ")
        for _ in range(5):
            with without_proxy(f"http://{page}/metrics", timeout=5) as read:
                assert "gradwire_jobs 0.0" in read.read().decode()
        assert threading.active_count() <= threads + visitors.MOST_VISITORS
        # This process has the other ends, too.
        assert process.num_fds() <= descriptors + 300 + visitors.MOST_VISITORS + 1


def test_whose_request_is_read_goes_after_those_that_are_still_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(visitors, "MOST_VISITORS", 2)
    asked, crowd = threading.Event(), threading.Event()

    def ask() -> pb.StatusResponse:
        asked.set()
        assert crowd.wait(10)
        return pb.StatusResponse(node_id="here")

    own = Metrics(CollectorRegistry(), "0.1")
    with metrics_page.serving("127.0.0.1:0", own, [], ask) as page, ExitStack() as stack:
        host, port = page.split(":")

        def come(request: bytes) -> socket.socket:
            visitor = socket.create_connection((host, int(port)), 10)
            stack.enter_context(visitor)
            visitor.sendall(request)
            return visitor

        patient = come(b"GET /status.json HTTP/1.0\r\n\r\n")
        assert asked.wait(10)
        slow = [come(b"GET ") for _ in range(4)]
        # All but the last of them are told to go.
        assert all(map(is_closed, slow[:3]))
        crowd.set()
        with patient.makefile("rb") as answer:
            assert b'"node_id": "here"' in answer.read()


def test_a_page_on_loopback_is_for_those_who_ask_for_loopback() -> None:
    own = Metrics(CollectorRegistry(), "0.1")
    with metrics_page.serving("127.0.0.1:0", own, [], pb.StatusResponse) as page:
        for path in ("", "status.json", "metrics"):
            strange = Request(f"http://{page}/{path}", headers={"Host": "rebound.example"})
            with pytest.raises(HTTPError, match="421"):
                without_proxy(strange)
            named = Request(f"http://{page}/{path}", headers={"Host": "localhost:9470"})
            with without_proxy(named) as answer:
                assert answer.status == 200


def test_slow_rounds_of_all_workers_are_examples() -> None:
    """OpenMetrics' exemplars, which lead from a histogram to the round."""
    own, other = (Metrics(CollectorRegistry(), "0.1") for _ in range(2))
    own.round_done("ring", 0.3, ("first", 7))
    other.round_done("ring", 0.3, ("second", 8))
    with (
        metrics_page.serving("127.0.0.1:0", other, []) as worker,
        metrics_page.serving("127.0.0.1:0", own, [worker]) as page,
    ):
        wanted = {"Accept": "application/openmetrics-text; version=1.0.0"}
        with without_proxy(Request(f"http://{page}/metrics", headers=wanted)) as read:
            text = read.read().decode()
    bucket = r'gradwire_round_seconds_bucket\{.*worker="(\d)".*\} 1.0 # \{generation="(\w+)",'
    assert sorted(re.findall(bucket, text)) == [("0", "first"), ("1", "second")]
