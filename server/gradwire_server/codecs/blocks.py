"""What the codecs with a number for every block have in common.

A segment is written as one fp32 for every block, its head, then a code for every element. Only
torch's passes over whole blocks are quick enough for this, and of those only some: isfinite, a
minimum and maximum at once, and every comparison cost more than all that is done here. So what
is rare, a NaN, an infinity, the ends of fp32's range, is found in the blocks' largest
magnitudes, and has a slower way of its own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import torch

from gradwire_server.codecs.base import ALIGNMENT, SEGMENT_ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Encode = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

BLOCK_ELEMENTS = 512
"""Fewer are slower, and their heads weigh more; more have a larger maximum, and coarser steps:
on normal data 1024 lose 5 % more, 256 lose 7 % less."""

HEAD_BYTES = 4
LEAST_PLAIN, MOST_PLAIN = 2.0**-110, 2.0**127
"""Between these, scales and their inverses are neither infinite nor subnormal."""


def blocked_size(elements: int, itemsize: int) -> int:
    """Bytes of a segment whose codes have so many bytes each."""
    size = -(-elements // BLOCK_ELEMENTS) * HEAD_BYTES + elements * itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT


def blocks(
    values: torch.Tensor, data: torch.Tensor, codes: torch.dtype
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Views of values, heads and codes, with one row for every block.

    First of all whole blocks, then of the rest, where there is one.
    """
    count = -(-values.numel() // BLOCK_ELEMENTS)
    begin = count * HEAD_BYTES
    heads = data[:begin].view(torch.float32).view(count, 1)
    written = data[begin : begin + values.numel() * codes.itemsize].view(codes)
    whole = values.numel() // BLOCK_ELEMENTS
    if count == whole:
        yield values.view(whole, -1), heads, written.view(whole, -1)
        return
    edge = whole * BLOCK_ELEMENTS
    if whole:
        yield values[:edge].view(whole, -1), heads[:whole], written[:edge].view(whole, -1)
    yield values[edge:].view(1, -1), heads[whole:], written[edge:].view(1, -1)


def encode_blocks(
    values: torch.Tensor, data: torch.Tensor, codes: torch.dtype, plain: Encode, careful: Encode
) -> None:
    """Write heads and codes: of rows whose heads are plain with `plain`, else with `careful`.

    Both are called with rows, heads, which are the largest magnitudes, and codes.
    """
    for rows, heads, written in blocks(values, data, codes):
        set_tops(rows, heads)
        (plain if are_plain(heads) else careful)(rows, heads, written)
    fill_up(data, values.numel(), codes.itemsize)


def fill_up(data: torch.Tensor, elements: int, itemsize: int) -> None:
    """Zero what is left behind the codes, so that the same values give the same bytes."""
    used = -(-elements // BLOCK_ELEMENTS) * HEAD_BYTES + elements * itemsize
    if used < len(data):
        data[used:].zero_()


def set_tops(rows: torch.Tensor, heads: torch.Tensor) -> None:
    """Write the largest magnitude of every row; NaN or infinite where an element of it is."""
    # abs() first takes as long, and writes.
    torch.amax(rows, 1, keepdim=True, out=heads)
    torch.maximum(heads, rows.amin(1, keepdim=True).neg_(), out=heads)


def are_plain(heads: torch.Tensor) -> bool:
    """Whether all are zero or within what is plain."""
    # NumPy's overhead is a third of torch's, and these are few.
    heads_ = heads.numpy()
    plain = (heads_ >= LEAST_PLAIN) & (heads_ <= MOST_PLAIN) | (heads_ == 0)
    return bool(plain.all())


def steps_per_unit(heads: torch.Tensor, steps: float) -> torch.Tensor:
    """What takes the largest magnitude of every row to so many steps; of plain heads."""
    # A block of zeros is zeros times any number.
    return heads.clamp(min=LEAST_PLAIN).reciprocal_().mul_(steps)


def refuse_infinite(heads: torch.Tensor) -> None:
    """Raise ValueError where a head is no number, which no encoder writes."""
    if not np.isfinite(heads.numpy()).all():
        raise ValueError("the head of a block is NaN or infinite")


class Finite:
    """Rows without what isn't finite in them, for the slower way."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.mask = rows.isfinite()
        self.rows = rows.where(self.mask, 0)
        self.tops = torch.empty(len(rows), 1)
        set_tops(self.rows, self.tops)
        self.special = ~self.mask.all(1, keepdim=True)
        """Rows that had such an element."""

    @property
    def shares(self) -> torch.Tensor:
        """Elements as parts of their row's largest magnitude: -1 to 1, at full precision."""
        return self.rows / self.tops.where(self.tops != 0, 1)

    @property
    def heads(self) -> torch.Tensor:
        """The largest magnitudes, negative where a row is special."""
        # All finite elements of a row without a largest one are zero: any number will do.
        return torch.where(self.special, -self.tops.where(self.tops != 0, 1), self.tops)


class _Scratch(threading.local):
    """The daemon encodes and decodes in several threads at once."""

    def __init__(self) -> None:
        self.whole: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self.held: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        """The part that was asked for last; views cost more than a look-up."""


_scratch = _Scratch()


def scratch(name: str, shape: torch.Size, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A segment's memory of this thread, with whatever was left there, or a part of it, until
    the name is asked for again.

    Memory that is fresh costs a page fault every 4 KiB, more than the passes over it.
    """
    held = _scratch.held.get((name, dtype))
    if held is None or held.shape != shape:
        held = _whole(name, dtype)[: shape.numel()].view(shape)
        _scratch.held[name, dtype] = held
    return held


def _whole(name: str, dtype: torch.dtype) -> torch.Tensor:
    whole = _scratch.whole.get((name, dtype))
    if whole is None:
        whole = _scratch.whole[name, dtype] = torch.empty(SEGMENT_ELEMENTS, dtype=dtype)
    return whole
