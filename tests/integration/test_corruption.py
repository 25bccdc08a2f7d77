"""A network that changes bytes (M29): a proxy between two daemons does."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.request import ProxyHandler, build_opener

import pytest
import torch

from gradwire import LostError, Session
from gradwire_ops import query
from gradwire_ops.cluster import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    ThreadsOver = Callable[[Sequence[str]], Callable[..., list[Any]]]
    Damage = Callable[[int], int | None]

ELEMENTS = 25_000_000
"""A bucket of 100 MB."""

BULK_BYTES = 256 << 10
PATIENCE_SECONDS = 10.0

HTTP2_PREFACE_BYTES, HTTP2_HEAD_BYTES, HTTP2_DATA = 24, 9, 0
GRPC_HEAD_BYTES = 5

without_proxy = build_opener(ProxyHandler({})).open


class Messages:
    """Follows the gRPC messages in one direction of a connection, and changes bytes in them.

    Only of them, and only of what they say: the framing stays as it is.
    """

    def __init__(self, preface_bytes: int, damage: Damage) -> None:
        """damage(size) says which byte of a message of this size to change, if any.

        It is not asked of the first message, the hello.
        """
        self._damage = damage
        self._left = preface_bytes
        """Bytes of the HTTP/2 frame that are still to come."""
        self._carries = False
        self._head = bytearray()
        self._message_head = bytearray()
        self._at = self._size = 0
        """Where in the message the next byte is, and how many it has."""
        self._change: int | None = None
        self._greeted = False

    def follow(self, data: bytearray) -> None:
        """Change what is to be changed in the bytes that come next."""
        at = 0
        while at < len(data):
            if self._left:
                stop = min(at + self._left, len(data))
                self._left -= stop - at
                if self._carries:
                    self._follow_messages(data, at, stop)
            else:
                stop = min(at + HTTP2_HEAD_BYTES - len(self._head), len(data))
                self._head += data[at:stop]
                if len(self._head) == HTTP2_HEAD_BYTES:
                    self._left = int.from_bytes(self._head[:3], "big")
                    self._carries = self._head[3] == HTTP2_DATA
                    self._head.clear()
            at = stop

    def _follow_messages(self, data: bytearray, at: int, end: int) -> None:
        while at < end:
            if self._at < self._size:
                stop = min(at + self._size - self._at, end)
                if self._change is not None and 0 <= self._change - self._at < stop - at:
                    data[at + self._change - self._at] ^= 1
                self._at += stop - at
            else:
                stop = min(at + GRPC_HEAD_BYTES - len(self._message_head), end)
                self._message_head += data[at:stop]
                if len(self._message_head) == GRPC_HEAD_BYTES:
                    self._begin(int.from_bytes(self._message_head[1:], "big"))
            at = stop

    def _begin(self, size: int) -> None:
        self._message_head.clear()
        self._at, self._size = 0, size
        self._change = self._damage(size) if self._greeted else None
        self._greeted = True


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
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._door.accept()
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", self.target))
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
