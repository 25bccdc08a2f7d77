"""A relay between two daemons: it passes their connections on, until it is told otherwise."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from gradwire_ops.drill_messages import HTTP2_PREFACE_BYTES, Messages

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LOOK_SECONDS = 0.05
"""How soon a thread that waits for bytes, or for room for them, hears of a reset."""
READ_BYTES = 1 << 18
CONNECT_SECONDS = 5.0
BULK_BYTES = 64 << 10
CHECKSUM_BYTES = 20
"""The head of a message up to and with its checksum, roughly: what follows is checked."""
_RESET = struct.pack("ii", 1, 0)


def _here(function: Callable[[], T]) -> T:
    return function()


class Relay:
    """Listens on a port of its own, and passes on to `target` whatever comes."""

    def __init__(
        self,
        host: str,
        target: tuple[str, int],
        there: Callable[[Callable[[], socket.socket]], socket.socket] = _here,
    ) -> None:
        """`there` calls a function where the sockets are to be made."""
        self._target = target
        self._there = there
        self._door = there(lambda: socket.create_server((host, 0)))
        self.port: int = self._door.getsockname()[1]
        self.damaged = 0
        """Messages that were changed."""
        self.damaged_at = 0.0
        """When the last one was, on the monotonic clock."""
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._rate: float | None = None
        self._damage: float | None = None
        self._pairs: set[_Pair] = set()
        self._closed = False
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def reset(self) -> int:
        """Break all connections, with a reset to both sides; how many there were."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        return len(pairs)

    def hold(self) -> None:
        """Pass on nothing, and say nothing: bytes wait, and new connections lead nowhere."""
        self._open.clear()

    def release(self) -> None:
        """Pass on again, first what has waited."""
        self._open.set()

    def slow_down(self, rate: int | None) -> None:
        """Bits per second, each way of each connection; None: as they come."""
        self._rate = rate

    def damage_one(self, place: float) -> None:
        """Change a bit in the next large message, at this part of it."""
        with self._lock:
            self._damage = place

    def close(self) -> None:
        """Break all connections, and take no more."""
        self._closed = True
        self._open.set()
        with suppress(OSError):
            # Closing alone would not wake the thread that waits in accept.
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.reset()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._door.accept()
            except OSError:
                return
            self._open.wait()
            try:
                there = self._there(
                    lambda: socket.create_connection(self._target, CONNECT_SECONDS)
                )
            except OSError:
                _break(here)
                continue
            self._join(_Pair(here, there))

    def _join(self, pair: _Pair) -> None:
        with self._lock:
            self._pairs.add(pair)
        if self._closed:
            pair.reset()
        threading.Thread(target=self._serve, args=(pair,), daemon=True).start()

    def _serve(self, pair: _Pair) -> None:
        with closing(pair.here), closing(pair.there):
            back = threading.Thread(
                target=self._pass, args=(pair, pair.there, pair.here, 0), daemon=True
            )
            back.start()
            self._pass(pair, pair.here, pair.there, HTTP2_PREFACE_BYTES)
            back.join()
        with self._lock:
            self._pairs.discard(pair)

    def _pass(
        self, pair: _Pair, source: socket.socket, sink: socket.socket, preface: int
    ) -> None:
        messages = Messages(preface, self._ask)
        try:
            while True:
                self._open.wait()
                data = pair.read(source)
                if not data:
                    break
                messages.follow(data)
                self._wait_for_turn(len(data))
                pair.write(sink, data)
        except OSError:
            pair.reset()
        with suppress(OSError):
            if not pair.broken:
                sink.shutdown(socket.SHUT_WR)

    def _wait_for_turn(self, size: int) -> None:
        self._open.wait()
        rate = self._rate
        if rate is None:
            return
        due = time.monotonic() + size * 8 / rate
        # It may be quick again meanwhile.
        while self._rate is not None and time.monotonic() < due:
            time.sleep(min(LOOK_SECONDS, max(0.0, due - time.monotonic())))

    def _ask(self, size: int) -> int | None:
        with self._lock:
            if self._damage is None or size < BULK_BYTES:
                return None
            place = max(CHECKSUM_BYTES, int(self._damage * size))
            self._damage = None
            self.damaged_at = time.monotonic()
            self.damaged += 1
            return place


class _Pair:
    """The two connections that are one to those who talk."""

    def __init__(self, here: socket.socket, there: socket.socket) -> None:
        self.here, self.there = here, there
        self.broken = False
        for one in (here, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(LOOK_SECONDS)

    def reset(self) -> None:
        """The threads that serve it close both, which is then a reset."""
        self.broken = True
        for one in (self.here, self.there):
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def read(self, source: socket.socket) -> bytearray:
        """What comes next; nothing at the end. Raises OSError."""
        while True:
            self._check()
            try:
                return bytearray(source.recv(READ_BYTES))
            except TimeoutError:
                continue

    def write(self, sink: socket.socket, data: bytearray) -> None:
        """All of it. Raises OSError."""
        view = memoryview(data)
        while view:
            self._check()
            try:
                view = view[sink.send(view) :]
            except TimeoutError:
                continue

    def _check(self) -> None:
        if self.broken:
            raise ConnectionResetError


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
