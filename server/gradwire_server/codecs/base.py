"""What a lossy wire does to the numbers that cross it.

A share is cut into segments, each encoded by itself, one behind the other. A codec is a pure
function of one segment, both ways; what the loss does to training, and where it is made good,
is not its matter (see gradwire_server.coding).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

SEGMENT_ELEMENTS = 65536
"""What is encoded at a time: 256 KiB of fp32, which stay in a core's cache from pass to pass,
and no more than 16 bits can count."""

ALIGNMENT = 8
"""A segment's bytes are a multiple of it, so that its numbers can be read where they lie."""


class Codec(Protocol):
    """Encodes segments of up to SEGMENT_ELEMENTS elements. Has no state.

    `values` is a flat fp32 tensor, `data` a flat uint8 tensor of just `size(len(values))` bytes
    that begins at a multiple of ALIGNMENT.
    """

    def size(self, elements: int) -> int:
        """Bytes of a segment of so many elements; a multiple of ALIGNMENT."""
        ...

    def encode(self, values: torch.Tensor, data: torch.Tensor, seed: int) -> None:
        """Write the values to data; they stay as they were.

        The same values and seed give the same bytes. A NaN or an infinity stays in its element,
        and changes no other by more than a finite one of that block might.
        """
        ...

    def decode(self, data: torch.Tensor, values: torch.Tensor) -> None:
        """Write what the data says to values, all of them. Whatever the bytes are, nothing
        else is touched; raises ValueError where they make no sense.
        """
        ...


def segments(elements: int) -> Iterator[tuple[int, int]]:
    """Elements [start, stop) of all segments of a share."""
    for start in range(0, elements, SEGMENT_ELEMENTS):
        yield start, min(start + SEGMENT_ELEMENTS, elements)


def encoded_size(codec: Codec, elements: int) -> int:
    """Bytes of an encoded share."""
    whole, rest = divmod(elements, SEGMENT_ELEMENTS)
    size = whole * codec.size(SEGMENT_ELEMENTS)
    return size + codec.size(rest) if rest else size
