"""The page of a daemon with workers, some of which do not answer as they should."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress
from urllib.request import ProxyHandler, build_opener

import pytest
from prometheus_client import CollectorRegistry

from gradwire_server import metrics_page
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
    monkeypatch.setattr(metrics_page, "SILENCE_SECONDS", 0.2)
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
