"""Beside our figures: what a plain TCP socket and a plain copy of memory take.

Prints rows as JSON: `name`, `size_bytes`, `seconds`, and for the socket `cpu_seconds`.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from figures.catalogue import GROWING, LARGE

if TYPE_CHECKING:
    from figures.setting import Row

_PIECE = 1 << 20
_LEAST_BYTES = 100_000_000
"""A round sends at least so much: one small tensor alone is too short for the clock."""


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(prog="figures.controls", description=__doc__)
    parser.add_argument("what", choices=("copy", "socket"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "copy":
        rows = [_copy(LARGE >> 10 if arguments.quick else LARGE, arguments.rounds)]
    else:
        sizes = GROWING[:1] if arguments.quick else GROWING
        rows = [_send(size, arguments.rounds) for size in sizes]
    print(json.dumps(rows))


def _copy(size: int, rounds: int) -> Row:
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - began)
    return {"name": "copy", "size_bytes": size, "seconds": statistics.median(times)}


def _send(size: int, rounds: int) -> Row:
    """One way, and both ends in this process, as a daemon sends a tensor and receives one."""
    calls = max(_LEAST_BYTES // size, 1)
    times, spent = [], []
    for _ in range(rounds):
        cpu, began = time.process_time(), time.perf_counter()
        _transfer(size * calls)
        times.append((time.perf_counter() - began) / calls)
        spent.append((time.process_time() - cpu) / calls)
    return {
        "name": "socket",
        "size_bytes": size,
        "seconds": statistics.median(times),
        "cpu_seconds": statistics.median(spent),
    }


def _transfer(size: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()[:2], timeout=60) as there,
        server.accept()[0] as here,
    ):
        sender = threading.Thread(target=_feed, args=(there, size), name="sends")
        sender.start()
        piece, left = bytearray(_PIECE), size
        while left and (count := here.recv_into(piece)):
            left -= count
        sender.join()
    if left:
        raise SystemExit(f"the socket ended {left} bytes early")


def _feed(there: socket.socket, size: int) -> None:
    piece = memoryview(bytes(_PIECE))
    for begin in range(0, size, _PIECE):
        there.sendall(piece[: min(_PIECE, size - begin)])


if __name__ == "__main__":
    main()
