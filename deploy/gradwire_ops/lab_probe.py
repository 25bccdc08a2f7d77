"""What a plain TCP socket carries between two nodes of a laboratory."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from gradwire_ops.lab_plan import LabError, queue_bytes, stream_count

if TYPE_CHECKING:
    from gradwire_ops.lab import Lab, Node

LEAST_SECONDS = 0.7
MOST_SECONDS = 10.0
ROUND_TRIPS = 20
"""A measurement lasts so many of a full link, since what is lost arrives that much later, and
much at once. Half of them are left out before it: TCP finds its windows, the buffers grow, and
the first burst passes."""
_PIECE = 1 << 20
_PATIENCE_SECONDS = 10.0


def payload_rate(net: Lab, sender: int, receiver: int) -> float:
    """Bytes per second of payload over one link, of a transfer that has got going.

    With a delay several streams share the link, because one has no window for it. Raises
    LabError where nothing arrives.
    """
    plan = net.plan
    rates = [rate for rate in (plan.rate(sender), plan.rate(receiver)) if rate is not None]
    streams, loaded_seconds = 1, plan.delay_seconds
    if rates:
        streams = stream_count(min(rates), plan.delay_seconds)
        # A full queue, and the way.
        loaded_seconds += queue_bytes(min(rates)) * 8 / min(rates)
    seconds = min(max(LEAST_SECONDS, ROUND_TRIPS * loaded_seconds), MOST_SECONDS)
    with _Transfer(net.nodes[sender], net.nodes[receiver], streams) as transfer:
        time.sleep(seconds / 2)
        before, began = transfer.received, time.perf_counter()
        time.sleep(seconds)
        received, elapsed = transfer.received - before, time.perf_counter() - began
    if not received:
        names = f"{net.nodes[sender].name} to {net.nodes[receiver].name}"
        raise LabError(f"nothing arrived from {names} in {elapsed:.1f} s")
    return received / elapsed


def round_trip_seconds(net: Lab, here: int, there: int, times: int = 5) -> float:
    """The quickest of several connections: one packet there, and one back."""
    address = net.nodes[there].addresses[0]
    with net.nodes[there].call(lambda: socket.create_server((address, 0))) as server:
        port = server.getsockname()[1]

        def connect() -> float:
            began = time.perf_counter()
            with socket.create_connection((address, port), _PATIENCE_SECONDS):
                return time.perf_counter() - began

        return min(net.nodes[here].call(connect) for _ in range(times))


class _Transfer:
    """Bytes on their way from one node to another, as fast as they go, until it is left."""

    def __init__(self, sender: Node, receiver: Node, streams: int) -> None:
        self._counts = [0] * streams
        self._stack = ExitStack()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        try:
            self._connect(sender, receiver, streams)
        except OSError as error:
            self._stack.close()
            raise LabError(f"{sender.name} can't reach {receiver.name}: {error}") from error

    @property
    def received(self) -> int:
        """Bytes so far."""
        return sum(self._counts)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            # The other end may have shut it down already.
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._stack.close()

    def _connect(self, sender: Node, receiver: Node, streams: int) -> None:
        address = receiver.addresses[0]
        listening = receiver.call(lambda: socket.create_server((address, 0), backlog=streams))
        server = self._stack.enter_context(listening)
        server.settimeout(_PATIENCE_SECONDS)
        target = server.getsockname()
        for number in range(streams):
            there = sender.call(lambda: socket.create_connection(target, _PATIENCE_SECONDS))
            self._stack.enter_context(there)
            here, _ = server.accept()
            self._stack.enter_context(here)
            self._sockets += [there, here]
            self._threads += [
                threading.Thread(target=self._send, args=(there,), name="probe sends"),
                threading.Thread(target=self._receive, args=(here, number), name="probe"),
            ]

    @staticmethod
    def _send(there: socket.socket) -> None:
        there.settimeout(None)
        zeros = bytes(_PIECE)
        # The end of the transfer is the end of the socket.
        with suppress(OSError):
            while True:
                there.sendall(zeros)

    def _receive(self, here: socket.socket, number: int) -> None:
        here.settimeout(None)
        piece = bytearray(_PIECE)
        with suppress(OSError):
            while count := here.recv_into(piece):
                self._counts[number] += count
