"""A network that changes bytes (M29): a proxy between two daemons does."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener

import pytest
import torch

from gradwire import LostError, Session
from gradwire_ops import query
from gradwire_ops.cluster import cluster
from gradwire_ops.drill_messages import HTTP2_PREFACE_BYTES, Messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradwire_ops.drill_messages import Damage

    ThreadsOver = Callable[[Sequence[str]], Callable[..., list[Any]]]

ELEMENTS = 25_000_000
"""A bucket of 100 MB."""

BULK_BYTES = 256 << 10
PATIENCE_SECONDS = 15.0
"""Where all is damaged a node that gives the link up can't say so; the other one hears nothing
for 10 s, and then knows."""

without_proxy = build_opener(ProxyHandler({})).open


class Proxy:
    """Passes on what comes, on any number of connections, and changes bytes when told to."""

    def __init__(self) -> None:
        self.damage: Damage | None = None
        """See Messages."""
        self.damaged = 0
        """Messages."""
        self.target = 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._lock = threading.Lock()
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._door.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                # The node behind has ended: so does who came.
                here.close()
                continue
            self._lines += [here, there]
            for way in ((here, there, HTTP2_PREFACE_BYTES), (there, here, 0)):
                threading.Thread(target=self._pass, args=way, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, preface_bytes: int) -> None:
        messages = Messages(preface_bytes, self._ask)
        with closing(source), closing(sink):
            try:
                while data := bytearray(source.recv(1 << 20)):
                    messages.follow(data)
                    sink.sendall(data)
            except OSError:
                return

    def _ask(self, size: int) -> int | None:
        with self._lock:
            place = self.damage(size) if self.damage is not None else None
            self.damaged += place is not None
            return place

    def reset(self) -> None:
        """Break all connections that there are."""
        lines, self._lines = self._lines, []
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._door.close()


class Once:
    """One large message, at this part of it."""

    def __init__(self, part: float) -> None:
        self._part: float | None = part

    def __call__(self, size: int) -> int | None:
        if self._part is None or size < BULK_BYTES:
            return None
        # The first bytes after the checksum are the share's head.
        place, self._part = max(20, int(self._part * size)), None
        return place


class Every:
    """Every so manieth message, in the middle."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._passed = 0

    def __call__(self, size: int) -> int | None:
        self._passed += 1
        return None if self._passed % self._interval else size // 2


@contextmanager
def far_apart(proxy: Proxy) -> Iterator[tuple[str, ...]]:
    """Two nodes, each of which reaches the other through the proxy: node 0 dials node 1."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    page = {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}
    told = {
        "GRADWIRE_LISTEN": f"127.0.0.1:{port}",
        "GRADWIRE_ADVERTISE": f"127.0.0.1:{proxy.port}",
    }
    proxy.target = port
    with cluster(1, page) as one, cluster(1, page | told) as other:
        yield (*one.addresses, *other.addresses)


def count(addresses: Sequence[str], metric: str) -> float:
    """What the daemons have counted, together."""
    total = 0.0
    for address in addresses:
        with without_proxy(f"http://{query.status(address).metrics}/metrics") as page:
            lines = page.read().decode().splitlines()
        total += sum(
            float(line.split()[-1]) for line in lines if line.startswith(f"{metric}_total{{")
        )
    return total


@pytest.mark.case("M29")
@pytest.mark.parametrize(
    "damage", [Once(0.5), Once(0), Every(20)], ids=["payload", "head", "every 20th"]
)
def test_bytes_that_change_on_the_way_are_sent_again_and_counted(
    threads_over: ThreadsOver, damage: Damage
) -> None:
    proxy = Proxy()

    def work(session: Session) -> tuple[float, float]:
        session.all_reduce(torch.ones(1)).wait()
        proxy.damage = damage
        ramp = (torch.arange(ELEMENTS) % 1000).float()
        tensor = ramp + session.rank
        session.all_reduce(tensor, "sum").wait()
        assert torch.equal(tensor, 2 * ramp + 1)
        session.all_reduce(torch.ones(1)).wait()
        damaged = count(addresses, "gradwire_frames_damaged")
        return damaged, count(addresses, "gradwire_frames_resent")

    with closing(proxy), far_apart(proxy) as addresses:
        counts = threads_over(addresses)((1, 1), work, timeout=60)
        damaged, resent = counts[0]
    assert proxy.damaged >= damaged >= 1
    assert resent >= 1
    if isinstance(damage, Once):
        assert counts[0][0] == counts[1][0] == proxy.damaged == 1
    else:
        assert damaged > 2


@pytest.mark.case("M29")
def test_a_way_on_which_all_is_damaged_is_an_error_and_no_other_sum(
    threads_over: ThreadsOver,
) -> None:
    proxy = Proxy()

    def work(session: Session) -> str:
        session.all_reduce(torch.ones(1)).wait()
        proxy.damage = Every(1)
        begun = time.monotonic()
        with pytest.raises(LostError) as caught:
            session.all_reduce(torch.ones(ELEMENTS), "sum").wait()
        assert time.monotonic() - begun < PATIENCE_SECONDS
        return str(caught.value)

    with closing(proxy), far_apart(proxy) as addresses:
        texts = threads_over(addresses)((1, 1), work)
    assert all("the daemon of node" in text for text in texts)
    assert any("data was damaged on the way from it" in text for text in texts)


def test_links_that_are_opened_again_are_counted(threads_over: ThreadsOver) -> None:
    proxy = Proxy()

    def work(session: Session) -> tuple[float, float]:
        session.all_reduce(torch.ones(1)).wait()
        before = count(addresses, "gradwire_link_reopened")
        session.all_reduce(torch.ones(1)).wait()
        if session.rank == 0:
            proxy.reset()
        assert session.all_reduce(torch.ones(9), "sum").wait().tolist() == [2.0] * 9
        return before, count(addresses, "gradwire_link_reopened")

    with closing(proxy), far_apart(proxy) as addresses:
        for before, after in threads_over(addresses)((1, 1), work):
            assert before == 0
            assert after >= 1
