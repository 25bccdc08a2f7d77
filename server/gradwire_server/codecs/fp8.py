"""E4M3: a sign, 4 bits of exponent and 3 of mantissa, with a scale for every block.

The format is that of Micikevicius et al., "FP8 formats for deep learning" (2022): up to 448,
one NaN, no infinity. Small elements keep more bits than in int8, large ones fewer.
"""

from __future__ import annotations

from functools import partial

import torch

from gradwire_server.codecs.base import SEGMENT_ELEMENTS
from gradwire_server.codecs.blocks import (
    Finite,
    are_plain,
    blocked_size,
    blocks,
    encode_blocks,
    refuse_infinite,
    scratch,
    steps_per_unit,
)
from gradwire_server.codecs.dither import Dither

MOST = 448.0
"""What the largest magnitude of a block becomes; a block's head is that magnitude."""

SPECIAL_MOST = 416.0
"""Where an element is NaN or infinite the head is negative, and MOST stands for infinity."""

EXPONENT_BITS = 0x7F80_0000
LEAST_NORMAL = 2.0**-6
MANTISSA = 2.0**-3

NAN_AS_NUMBER = 480.0
"""What the NaN of E4M3 would be, were it a number like others."""

HALF_SHIFT, HALF_BITS, HALF_UNIT = 7, 0xBF80 - (1 << 16), 256.0
"""Where the bits of E4M3 lie in an fp16 (a mask, as an int16), and what that is short of."""


class Fp8:
    """See Codec. Rounds to the nearest, ties to even, or up or down at random."""

    segment = SEGMENT_ELEMENTS

    def __init__(self, *, stochastic: bool = False) -> None:
        self._stochastic = stochastic

    def size(self, elements: int) -> int:
        """See Codec."""
        return blocked_size(elements, torch.int8.itemsize)

    def encode(self, values: torch.Tensor, data: torch.Tensor, seed: int) -> None:
        """See Codec."""
        dither = Dither(seed) if self._stochastic else None
        plain, careful = (
            partial(_encode, dither=dither),
            partial(_encode_carefully, dither=dither),
        )
        encode_blocks(values, data, torch.float8_e4m3fn, plain, careful)

    def decode(self, data: torch.Tensor, values: torch.Tensor) -> None:
        """See Codec."""
        for rows, heads, codes in blocks(values, data, torch.int8):
            _widen(codes, rows)
            if are_plain(heads):
                rows.mul_(heads * (HALF_UNIT / MOST))
            else:
                refuse_infinite(heads)
                _scale_carefully(rows, heads)


def _encode(
    rows: torch.Tensor, heads: torch.Tensor, codes: torch.Tensor, dither: Dither | None
) -> None:
    scaled = scratch("steps", rows.shape)
    torch.mul(rows, steps_per_unit(heads, MOST), out=scaled)
    if dither is not None:
        _round_at_random(scaled, dither)
        # The largest may have come out a bit above, and been rounded up.
        scaled.clamp_(-MOST, MOST)
    codes.copy_(scaled)


def _encode_carefully(
    rows: torch.Tensor, heads: torch.Tensor, codes: torch.Tensor, dither: Dither | None
) -> None:
    finite = Finite(rows)
    most = torch.where(finite.special, SPECIAL_MOST, MOST)
    scaled = finite.shares * most
    if dither is not None:
        _round_at_random(scaled, dither)
        torch.clamp(scaled, -most, most, out=scaled)
    scaled[rows == torch.inf] = MOST
    scaled[rows == -torch.inf] = -MOST
    scaled[rows.isnan()] = torch.nan
    heads.copy_(finite.heads)
    codes.copy_(scaled)


def _round_at_random(scaled: torch.Tensor, dither: Dither) -> None:
    """To a number of E4M3, above or below."""
    units = scratch("units", scaled.shape)
    bits = units.view(torch.int32)
    torch.bitwise_and(scaled.view(torch.int32), EXPONENT_BITS, out=bits)
    units.clamp_(min=LEAST_NORMAL).mul_(MANTISSA)
    scaled.div_(units)
    dither.round_(scaled)
    scaled.mul_(units)


def _widen(codes: torch.Tensor, rows: torch.Tensor) -> None:
    """Write the codes' numbers over HALF_UNIT to the rows.

    torch's own conversion takes ten times as long. In an fp16 the exponent is biased by 8 more,
    so that its number is 2^8 too small, that of a subnormal, too.
    """
    halves = scratch("halves", codes.shape, torch.int16)
    halves.copy_(codes)
    halves.bitwise_left_shift_(HALF_SHIFT).bitwise_and_(HALF_BITS)
    rows.copy_(halves.view(torch.float16))


def _scale_carefully(rows: torch.Tensor, heads: torch.Tensor) -> None:
    """Make values of the widened codes in the rows."""
    special = heads < 0
    scaled = rows * HALF_UNIT
    # Neither the ends of fp32's range nor subnormal heads lose anything in this order.
    torch.div(scaled, torch.where(special, SPECIAL_MOST, MOST), out=rows).mul_(heads.abs())
    rows[special & (scaled == MOST)] = torch.inf
    rows[special & (scaled == -MOST)] = -torch.inf
    rows[special & (scaled.abs() == NAN_AS_NUMBER)] = torch.nan
