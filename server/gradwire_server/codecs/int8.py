"""A byte for every element: how many steps of its block it is."""

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

STEPS = 127
"""The largest magnitude of a block is so many, a block's head is that magnitude."""

SPECIAL_STEPS = 126
"""Where an element is NaN or infinite the head is negative, and three codes are taken."""
NAN, MINUS_INFINITY, PLUS_INFINITY = -128, -127, 127


class Int8:
    """See Codec. Elements are within half a step of what they were, or a step if stochastic."""

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
        encode_blocks(values, data, torch.int8, plain, careful)

    def decode(self, data: torch.Tensor, values: torch.Tensor) -> None:
        """See Codec."""
        for rows, heads, codes in blocks(values, data, torch.int8):
            rows.copy_(codes)
            if are_plain(heads):
                rows.mul_(heads / STEPS)
            else:
                refuse_infinite(heads)
                _scale_carefully(rows, heads)


def _encode(
    rows: torch.Tensor, heads: torch.Tensor, codes: torch.Tensor, dither: Dither | None
) -> None:
    steps = scratch("steps", rows.shape)
    torch.mul(rows, steps_per_unit(heads, STEPS), out=steps)
    if dither is None:
        steps.round_()
    else:
        dither.round_(steps)
        # The largest may have come out a bit above its steps, and been rounded up.
        steps.clamp_(-STEPS, STEPS)
    codes.copy_(steps)


def _encode_carefully(
    rows: torch.Tensor, heads: torch.Tensor, codes: torch.Tensor, dither: Dither | None
) -> None:
    finite = Finite(rows)
    most = torch.where(finite.special, float(SPECIAL_STEPS), float(STEPS))
    steps = finite.shares * most
    if dither is None:
        steps.round_()
    else:
        dither.round_(steps)
        torch.clamp(steps, -most, most, out=steps)
    steps[rows == torch.inf] = PLUS_INFINITY
    steps[rows == -torch.inf] = MINUS_INFINITY
    steps[rows.isnan()] = NAN
    heads.copy_(finite.heads)
    codes.copy_(steps)


def _scale_carefully(rows: torch.Tensor, heads: torch.Tensor) -> None:
    """Make values of the steps in the rows."""
    special = heads < 0
    steps = rows.clone()
    # Neither the ends of fp32's range nor subnormal heads lose anything in this order.
    rows.div_(torch.where(special, float(SPECIAL_STEPS), float(STEPS))).mul_(heads.abs())
    rows[special & (steps == PLUS_INFINITY)] = torch.inf
    rows[special & (steps == MINUS_INFINITY)] = -torch.inf
    rows[special & (steps == NAN)] = torch.nan
