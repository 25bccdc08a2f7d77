"""Measures the way from one node to another, with plain TCP."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gradwire_ops.doctor.facts import Link
from gradwire_proto.addresses import join_address

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 5.0
PINGS = 20
WARM_UP = 0.3
"""Of a transfer: TCP finds its window."""
_PIECE = bytes(1 << 18)
_PING, _BULK = b"P", b"B"
_NUMBER = struct.Struct("<d")
"""Seconds, or bytes per second."""
_IP_MTU, _IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h


@contextmanager
def answering(address: str, port: int = 0) -> Iterator[int]:
    """Answer whoever measures the way to here; gives the port. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family) as server:
        thread = threading.Thread(target=_answer_all, args=(server,), daemon=True)
        thread.start()
        try:
            yield int(server.getsockname()[1])
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_SECONDS)


def measure(source: str, target: str, address: str, port: int, seconds: float) -> Link:
    """The way to whoever answers there."""
    try:
        with socket.create_connection((address, port), PATIENCE_SECONDS) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trip, ahead = _ping(line)
            rate = _send(line, seconds)
            return Link(source, target, "", rate, trip, _path_mtu(line), ahead)
    except OSError as error:
        return Link(source, target, explain(error, join_address(address, port)))


def explain(error: OSError, place: str) -> str:
    """Why nobody answers there."""
    if isinstance(error, ConnectionRefusedError):
        return f"refused: nothing listens at {place}, or a firewall says no"
    if isinstance(error, TimeoutError):
        return f"filtered: no answer from {place} within {PATIENCE_SECONDS:g} s"
    return f"{place}: {error.strerror or error}"


def _answer_all(server: socket.socket) -> None:
    while True:
        try:
            line, _ = server.accept()
        except OSError:
            return
        # One at a time: who measures has the link to itself.
        with line, suppress(OSError, struct.error):
            line.settimeout(PATIENCE_SECONDS)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _answer(line)


def _answer(line: socket.socket) -> None:
    while (command := line.recv(1)) == _PING:
        line.sendall(_NUMBER.pack(time.time()))
    if command == _BULK:
        (lasts,) = _NUMBER.unpack(_receive(line, _NUMBER.size))
        line.sendall(_NUMBER.pack(_count(line, lasts)))


def _count(line: socket.socket, lasts: float) -> float:
    """Bytes per second of what comes, without the beginning."""
    room = memoryview(bytearray(1 << 20))
    begun = time.perf_counter()
    counted, since = 0, None
    while got := line.recv_into(room):
        now = time.perf_counter()
        if since is not None:
            counted += got
        elif now - begun > WARM_UP * lasts:
            since = now
    elapsed = 0.0 if since is None else time.perf_counter() - since
    return counted / elapsed if elapsed else 0.0


def _ping(line: socket.socket) -> tuple[float, float]:
    """The least round trip, and by how much the other's clock of the day is ahead."""
    best = (float("inf"), 0.0)
    for _ in range(PINGS):
        begun, at = time.perf_counter(), time.time()
        line.sendall(_PING)
        (there,) = _NUMBER.unpack(_receive(line, _NUMBER.size))
        trip = time.perf_counter() - begun
        best = min(best, (trip, there - at - trip / 2))
    return best


def _send(line: socket.socket, seconds: float) -> float:
    line.sendall(_BULK + _NUMBER.pack(seconds))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        line.sendall(_PIECE)
    line.shutdown(socket.SHUT_WR)
    (rate,) = _NUMBER.unpack(_receive(line, _NUMBER.size))
    return float(rate)


def _path_mtu(line: socket.socket) -> int:
    try:
        if line.family == socket.AF_INET6:
            return line.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
        return line.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return 0


def _receive(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = line.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the other side ended the connection")
        data += more
    return data


def reach(source: str, target: str, place: tuple[str, int]) -> Link:
    """Whether anything listens there, and how far it is. Raises OSError."""
    begun = time.perf_counter()
    with socket.create_connection(place, PATIENCE_SECONDS) as line:
        trip = time.perf_counter() - begun
        return Link(source, target, round_trip=trip, path_mtu=_path_mtu(line))
