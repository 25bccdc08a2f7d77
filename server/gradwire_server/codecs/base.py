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

SEGMENT_ELEMENTS = 131072
"""What is encoded at a time, at most: 512 KiB of fp32, which stay in a core's cache from pass
to pass. Half as much costs a fifth more, since every pass has its price in Python."""

ALIGNMENT = 8
"""A segment's bytes are a multiple of it, so that its numbers can be read where they lie."""


class Codec(Protocol):
    """Encodes segments. Has no state.

    `values` is a flat fp32 tensor, `data` a flat uint8 tensor of just its size() in bytes, that
    begins at a multiple of ALIGNMENT.
    """

    segment: int
    """Elements of a segment, but for the last of a share; SEGMENT_ELEMENTS at most."""

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


def segments(codec: Codec, elements: int) -> Iterator[tuple[int, int]]:
    """Elements [start, stop) of all segments of a share."""
    for start in range(0, elements, codec.segment):
        yield start, min(start + codec.segment, elements)


def encoded_size(codec: Codec, elements: int) -> int:
    """Bytes of an encoded share."""
    whole, rest = divmod(elements, codec.segment)
    size = whole * codec.size(codec.segment)
    return size + codec.size(rest) if rest else size
