"""Messages with a payload, written and read without copying the payload more than once.

gRPC takes and gives whole messages as `bytes`. Building a message object around a payload would
copy it twice more on each side. `join` therefore writes the payload behind the serialised rest,
which is what protobuf itself does with a field of the highest number; `split` finds it there
and gives a view. Both produce and accept plain protobuf: the other side may be anybody's stub.

Wire format: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

from crc32c import crc32c
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from google.protobuf.message import Message

PAYLOAD_FIELD = 15

CHECKSUM_FIELD = 14

_PAYLOAD_TAG = PAYLOAD_FIELD << 3 | 2
_CHECKSUM = struct.Struct("<BI")
_CHECKSUM_TAG = CHECKSUM_FIELD << 3 | 5
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_LONGEST_SHIFT = 63

M = TypeVar("M", bound="Message")


def join(message: Message, payload: memoryview) -> bytes:
    """Serialise a message whose payload field is `payload`. One copy of it."""
    head = message.SerializeToString()
    if not payload.nbytes:
        return head
    return b"".join((head, bytes((_PAYLOAD_TAG,)), _varint(payload.nbytes), payload))


def seal(message: Message, payload: memoryview) -> bytes:
    """As join, with a checksum in front of all of it."""
    head = message.SerializeToString()
    if payload.nbytes:
        head = b"".join((head, bytes((_PAYLOAD_TAG,)), _varint(payload.nbytes)))
    checksum = _checksum(payload, _checksum(head))
    return b"".join((_CHECKSUM.pack(_CHECKSUM_TAG, checksum), head, payload))


def is_whole(data: bytes) -> bool:
    """The message was sealed, and is as it was then."""
    if len(data) < _CHECKSUM.size:
        return False
    tag, checksum = _CHECKSUM.unpack_from(data)
    found = _checksum(memoryview(data)[_CHECKSUM.size :])
    return bool(tag == _CHECKSUM_TAG and checksum == found)


def _checksum(data: bytes | memoryview, before: int = 0) -> int:
    """Without letting go of the GIL, which takes longer to come back than this takes."""
    return int(crc32c(data, before, gil_release_mode=0))


def split(data: bytes, into: type[M]) -> tuple[M, memoryview]:
    """Parse a message, but give its payload as a view of `data`.

    Raises ValueError where the bytes are no such message.
    """
    start, body, end = _find_payload(data)
    rest = data[:start] if end == len(data) else data[:start] + data[end:]
    try:
        return into.FromString(rest), memoryview(data)[body:end]
    except DecodeError as error:
        raise ValueError(
            f"expected a {into.__name__}, got {len(data)} other bytes: {error}"
        ) from error


def _find_payload(data: bytes) -> tuple[int, int, int]:
    """Where the payload's field starts, its content starts, and it ends."""
    position, size = 0, len(data)
    while position < size:
        start = position
        tag, position = _read_varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _read_varint(data, position)
        elif kind == _BYTES:
            length, position = _read_varint(data, position)
            if position + length > size:
                raise ValueError(f"a field of {length} bytes ends outside the message")
            if tag == _PAYLOAD_TAG:
                return start, position, position + length
            position += length
        elif kind in _FIXED:
            position += _FIXED[kind]
        else:
            raise ValueError(f"unknown wire type {kind} at byte {start}")
    return size, size, size


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > _LONGEST_SHIFT:
            raise ValueError(f"a number at byte {position} is cut short or too long")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
