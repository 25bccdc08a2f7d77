"""Follows the gRPC messages on a connection, and changes bytes in them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Damage: TypeAlias = Callable[[int], int | None]
    """Which byte of a message of this size to change, if any."""

HTTP2_PREFACE_BYTES, HTTP2_HEAD_BYTES, HTTP2_DATA = 24, 9, 0
GRPC_HEAD_BYTES = 5


class Messages:
    """Follows the gRPC messages in one direction of a connection, and changes bytes in them.

    Only of them, and only of what they say: the framing stays as it is.
    """

    def __init__(self, preface_bytes: int, damage: Damage) -> None:
        """It is not asked of the first message, the hello."""
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
