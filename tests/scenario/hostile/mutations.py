"""Messages made wrong: as bytes, by their fields, and in their order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

T = TypeVar("T")
M = TypeVar("M", bound="Message")

LONGEST_NOISE = 3000

_UNSIGNED_32 = (0, 1, 2, 1 << 16, (1 << 31) - 1, (1 << 32) - 1)
_UNSIGNED_64 = (*_UNSIGNED_32, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
_SIGNED_32 = (0, 1, -1, 99, (1 << 31) - 1, -(1 << 31))
_FLOATS = (0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324)
_TEXTS = ("", "x", "0" * 32, "../../etc/passwd", "\0", "\U0001f984" * 50, "y" * 5000)

_EXTREMES: dict[int, Sequence[object]] = {
    FieldDescriptor.TYPE_UINT32: _UNSIGNED_32,
    FieldDescriptor.TYPE_FIXED32: _UNSIGNED_32,
    FieldDescriptor.TYPE_UINT64: _UNSIGNED_64,
    FieldDescriptor.TYPE_FIXED64: _UNSIGNED_64,
    FieldDescriptor.TYPE_INT32: _SIGNED_32,
    FieldDescriptor.TYPE_ENUM: _SIGNED_32,
    FieldDescriptor.TYPE_INT64: _SIGNED_32,
    FieldDescriptor.TYPE_SINT64: (*_SIGNED_32, (1 << 63) - 1, -(1 << 63)),
    FieldDescriptor.TYPE_DOUBLE: _FLOATS,
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_STRING: _TEXTS,
    FieldDescriptor.TYPE_BYTES: tuple(text.encode() for text in _TEXTS),
}


def noise(draw: random.Random) -> bytes:
    """Anything."""
    return draw.randbytes(draw.choice((0, 1, 5, 40, LONGEST_NOISE)))


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Not what it was, in one of the ways in which bytes can be."""
    ways: list[Callable[[], bytes]] = [
        lambda: _flipped(draw, data),
        lambda: data[: draw.randrange(len(data) + 1)],
        lambda: data[draw.randrange(len(data) + 1) :],
        lambda: data + noise(draw),
        lambda: data + data,
        lambda: noise(draw),
        lambda: data[: len(data) // 2] + b"\xff" * 12 + data[len(data) // 2 :],
    ]
    return draw.choice(ways)()


def extreme(draw: random.Random, message: M) -> M:
    """A copy with one field, here or further down, that says something nobody would."""
    made = type(message)()
    made.CopyFrom(message)
    _exaggerate(draw, made)
    return made


def disordered(draw: random.Random, items: Sequence[T]) -> list[T]:
    """Some of them twice, left out, replayed in the end, or in another order."""
    made = list(items)
    for _ in range(draw.randrange(4)):
        at, other = draw.randrange(len(made)), draw.randrange(len(made))
        match draw.randrange(4):
            case 0:
                made.insert(at, made[other])
            case 1 if len(made) > 1:
                del made[at]
            case 2:
                made.append(made[at])
            case _:
                made[at], made[other] = made[other], made[at]
    return made


def _flipped(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 9)):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _exaggerate(draw: random.Random, message: Message) -> None:
    fields: Any = message.DESCRIPTOR.fields
    field: FieldDescriptor = draw.choice(fields)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        _descend(draw, message, field)
        return
    value: Any = draw.choice(_EXTREMES[field.type])
    if field.is_repeated:
        getattr(message, field.name).extend([value] * draw.choice((1, 2, 300)))
    else:
        setattr(message, field.name, value)


def _descend(draw: random.Random, message: Message, field: FieldDescriptor) -> None:
    inner: Any = getattr(message, field.name)
    if field.is_repeated:
        inner.add()
        inner = draw.choice(inner)
    else:
        inner.SetInParent()
    if inner.DESCRIPTOR.fields:
        _exaggerate(draw, inner)
