"""A network that changes a byte (M29): a proxy between two daemons does."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gradwire import LostError, Session
from gradwire_ops.cluster import cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    ThreadsOver = Callable[[Sequence[str]], Callable[..., list[Any]]]

ELEMENTS = 25_000_000
"""A bucket of 100 MB."""

MARK = b"25000000"
"""Its shape in words, as each share's head has it."""

BULK_BYTES = 1 << 20


class Proxy:
    """Passes on what comes, on any number of connections, and changes a byte when told to."""

    def __init__(self) -> None:
        self.damage: Callable[[bytearray], bool] | None = None
        """Changes a byte of what passes if it likes; whether it did. Then it is done with."""
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
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with closing(source), closing(sink):
            try:
                while data := bytearray(source.recv(1 << 20)):
                    with self._lock:
                        if self.damage is not None and self.damage(data):
                            self.damage = None
                    sink.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._door.close()


class Payload:
    """Changes a byte in the middle of the bulk: by then all that passes is payload."""

    def __init__(self) -> None:
        self._passed = 0

    def __call__(self, data: bytearray) -> bool:
        self._passed += len(data)
        if self._passed < BULK_BYTES or len(data) < 4096:
            return False
        data[len(data) // 2] ^= 1
        return True


def head(data: bytearray) -> bool:
    """Changes a byte of what is said of a share."""
    at = data.find(MARK)
    if at < 0:
        return False
    data[at] ^= 1
    return True


@contextmanager
def far_apart(proxy: Proxy) -> Iterator[tuple[str, ...]]:
    """Two nodes, each of which reaches the other through the proxy: node 0 dials node 1."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    told = {
        "GRADWIRE_LISTEN": f"127.0.0.1:{port}",
        "GRADWIRE_ADVERTISE": f"127.0.0.1:{proxy.port}",
    }
    proxy.target = port
    with cluster(1) as one, cluster(1, told) as other:
        yield (*one.addresses, *other.addresses)


@pytest.mark.case("M29")
@pytest.mark.parametrize("damage", [Payload, lambda: head], ids=["payload", "head"])
def test_a_byte_that_changed_on_the_way_is_an_error_and_no_other_mean(
    threads_over: ThreadsOver, damage: Callable[[], Callable[[bytearray], bool]]
) -> None:
    proxy = Proxy()

    def work(session: Session) -> str:
        tensor = torch.ones(ELEMENTS)
        session.all_reduce(tensor, "sum").wait()
        assert tensor.unique().tolist() == [2.0]
        session.all_reduce(torch.ones(1)).wait()
        if session.rank == 0:
            proxy.damage = damage()
        session.all_reduce(torch.ones(1)).wait()
        with pytest.raises(LostError) as caught:
            session.all_reduce(torch.ones(ELEMENTS), "sum").wait()
        return str(caught.value)

    with closing(proxy), far_apart(proxy) as addresses:
        texts = threads_over(addresses)((1, 1), work)
    assert all("the daemon of node" in text for text in texts)
    assert any("data was damaged on the way from it" in text for text in texts)
