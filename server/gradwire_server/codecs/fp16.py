"""Half precision, 11 bits, with a power of two for every block that moves its range."""

from __future__ import annotations

import torch

from gradwire_server.codecs.base import SEGMENT_ELEMENTS
from gradwire_server.codecs.blocks import (
    MOST_PLAIN,
    Finite,
    blocked_size,
    blocks,
    fill_up,
    refuse_infinite,
    scratch,
    set_tops,
)

LIFT = 2.0**14
"""Where the power of two in a block's largest magnitude is put. Rounding up takes what is below
2 x LIFT to that at most, and fp16 goes on to 4 x LIFT."""

LEAST_POWER = 2.0**-112
"""A smaller one would need a scale beyond fp32; all multiples of 2^-149 are exact with it."""

EXPONENT_BITS = 0x7F80_0000
LARGEST_BELOW = 32752.0
"""The fp16 below 2 x LIFT."""


class Fp16:
    """See Codec. Rounds to the nearest, ties to even; powers of two are exact.

    Elements below 2^-38 of their block's largest become zero.
    """

    segment = SEGMENT_ELEMENTS

    def size(self, elements: int) -> int:
        """See Codec."""
        return blocked_size(elements, torch.float16.itemsize)

    def encode(self, values: torch.Tensor, data: torch.Tensor, seed: int) -> None:
        """See Codec."""
        for rows, heads, codes in blocks(values, data, torch.float16):
            set_tops(rows, heads)
            if heads.numpy().max() < MOST_PLAIN:
                _set_units(heads)
                steps = scratch("steps", rows.shape)
                codes.copy_(torch.mul(rows, heads.reciprocal(), out=steps))
            else:
                _encode_carefully(rows, heads, codes)
        fill_up(data, values.numel(), torch.float16.itemsize)

    def decode(self, data: torch.Tensor, values: torch.Tensor) -> None:
        """See Codec."""
        for rows, heads, codes in blocks(values, data, torch.float16):
            refuse_infinite(heads)
            rows.copy_(codes)
            rows.mul_(heads)


def _set_units(heads: torch.Tensor) -> None:
    """Make of the largest magnitudes what 1 in fp16 stands for."""
    heads.view(torch.int32).bitwise_and_(EXPONENT_BITS)
    heads.clamp_(min=LEAST_POWER).mul_(1 / LIFT)


def _encode_carefully(rows: torch.Tensor, heads: torch.Tensor, codes: torch.Tensor) -> None:
    finite = Finite(rows)
    _set_units(heads.copy_(finite.tops))
    steps = finite.rows / heads
    # What is rounded up to 2 x LIFT may stand for more than fp32 can hold.
    steps.clamp_(-LARGEST_BELOW, LARGEST_BELOW)
    codes.copy_(steps.where(finite.mask, rows))
