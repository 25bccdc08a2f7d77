"""Assaults below gRPC: bytes on ports and sockets. Each says how many messages it has sent."""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from gradwire_proto.addresses import split_address
from hostile.mutations import damaged, noise

if TYPE_CHECKING:
    import random

    from hostile.seats import Target

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
PING = b"\0\0\10\6\0\0\0\0\0" + bytes(8)
HEADERS = b"\0\0\5\1\4\0\0\0\1" + b"\x82\x86\x84\x41\x8a"
DATA = b"\0\0\5\0\0\0\0\0\3" + bytes(5)
LONG = b"\xff\xff\xff\0\0\0\0\0\1"
GOAWAY = b"\0\0\10\7\0\0\0\0\0" + bytes(8)
HTTP2 = (SETTINGS, PING, HEADERS, DATA, LONG, GOAWAY, HEADERS * 20, PING * 20)

GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
HALF_OPEN = 20
"""Connections that are held with half a message on them; the oldest ends for a new one."""

_held: deque[socket.socket] = deque()


def port(draw: random.Random, target: Target) -> int:
    """Noise and half of HTTP/2, on the TCP port or the Unix socket."""
    visitor = _tcp(target.address) if draw.random() < 0.7 else _unix(target.socket)
    frames = [PREFACE, *draw.choices(HTTP2, k=draw.randrange(1, 4))]
    said = draw.choice([[noise(draw)], frames, [damaged(draw, each) for each in frames]])
    _say(draw, visitor, said)
    return len(said)


def page(draw: random.Random, target: Target) -> int:
    """Requests to the metrics page that are none, or are not finished."""
    said = draw.choice(
        [
            [noise(draw)],
            [damaged(draw, GET)],
            [GET[:20]],
            [b"POST /metrics HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n"],
            [b"GET " + b"/x" * 40_000 + b" HTTP/1.1\r\n\r\n"],
            [b"GET /metrics?name[]=" + b"\xff" * 9 + b" HTTP/1.1\r\n\r\n"],
            [GET[:-2], *(b"X: y\r\n" for _ in range(5))],
        ]
    )
    _say(draw, _tcp(target.metrics), said)
    return len(said)


def let_go() -> None:
    """End all that is held."""
    while _held:
        _held.popleft().close()


def _say(draw: random.Random, visitor: socket.socket, said: list[bytes]) -> None:
    with suppress(OSError):
        for data in said:
            visitor.sendall(data)
    if draw.random() < 0.3:
        _held.append(visitor)
        if len(_held) > HALF_OPEN:
            _held.popleft().close()
    else:
        visitor.close()


def _tcp(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), timeout=5.0)


def _unix(path: str) -> socket.socket:
    visitor = socket.socket(socket.AF_UNIX)
    visitor.settimeout(5.0)
    visitor.connect(path)
    return visitor
