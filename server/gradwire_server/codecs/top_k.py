"""Only the largest elements, with their places; all others are zero.

Sorting out the k largest of a segment takes torch.topk half a millisecond. A sample of the
segment says above which magnitude they must be; few more than k are, and among these the choice
is quick. Magnitudes are compared as the whole numbers that their bits are: the order is the
same, and NaN comes out above infinity, infinity above all else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from gradwire_server.codecs.base import ALIGNMENT
from gradwire_server.codecs.blocks import scratch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits: TypeAlias = NDArray[np.int32]
    Places: TypeAlias = NDArray[np.intp]

HEADER_BYTES = 8
"""1 in the first byte: not all NaNs and infinities are among the k. The others are zero."""

VALUE_BYTES, PLACE_BYTES = 4, 2
MAGNITUDE_BITS = 0x7FFF_FFFF
INFINITY_BITS = 0x7F80_0000

SAMPLE_STRIDE = 31
"""Odd, so that it falls into step with no width of a layer."""

SAMPLED_FROM = 4096
"""Elements from which on a sample pays."""


class TopK:
    """See Codec. Keeps the k largest magnitudes, of equal ones the first, bit by bit.

    k is max(1, ceil(ratio x elements)). A NaN or an infinity is among the largest; where there
    are more than k of them, every element that is not kept is decoded as NaN, lest one be lost.
    Raises ValueError for a ratio that isn't above 0 and at most 1.
    """

    segment = 65536
    """No more than 16 bits can count."""

    def __init__(self, ratio: float) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"a ratio is above 0 and at most 1, not {ratio}")
        self._ratio = ratio

    def size(self, elements: int) -> int:
        """See Codec."""
        if not elements:
            return 0
        size = HEADER_BYTES + self._kept(elements) * (VALUE_BYTES + PLACE_BYTES)
        return -(-size // ALIGNMENT) * ALIGNMENT

    def encode(self, values: torch.Tensor, data: torch.Tensor, seed: int) -> None:
        """See Codec."""
        kept = self._kept(values.numel())
        numbers = values.numpy()
        bits: Bits = scratch("bits", values.shape, torch.int32).numpy()
        np.bitwise_and(numbers.view(np.int32), MAGNITUDE_BITS, out=bits)
        chosen = _largest(bits, kept)
        written = data.numpy()
        places_at = HEADER_BYTES + kept * VALUE_BYTES
        end = places_at + kept * PLACE_BYTES
        written[:HEADER_BYTES] = 0
        written[0] = _are_more_infinite(bits, chosen)
        written[HEADER_BYTES:places_at].view(np.float32)[:] = numbers[chosen]
        written[places_at:end].view(np.uint16)[:] = chosen
        written[end:] = 0

    def decode(self, data: torch.Tensor, values: torch.Tensor) -> None:
        """See Codec."""
        kept = self._kept(values.numel())
        read = data.numpy()
        places_at = HEADER_BYTES + kept * VALUE_BYTES
        places = read[places_at : places_at + kept * PLACE_BYTES].view(np.uint16)
        if read[0] > 1 or read[1:HEADER_BYTES].any():
            raise ValueError("the header is neither 0 nor 1")
        if places[-1] >= values.numel() or not (places[1:] > places[:-1]).all():
            raise ValueError(f"the places are not in order, below {values.numel()}")
        values.fill_(torch.nan if read[0] else 0.0)
        values.numpy()[places] = read[HEADER_BYTES:places_at].view(np.float32)

    def _kept(self, elements: int) -> int:
        return min(max(1, math.ceil(self._ratio * elements)), elements)


def _largest(bits: Bits, kept: int) -> Places:
    """Places of so many largest ones, in order; of equal ones the first."""
    threshold = _guess(bits, kept)
    candidates = np.flatnonzero(bits > threshold)
    missing = kept - len(candidates)
    if missing > 0:
        equal = np.flatnonzero(bits == threshold)[:missing]
        if len(equal) == missing:
            return np.sort(np.concatenate((candidates, equal)))
        # The sample had too many of the largest.
        candidates = np.arange(len(bits))
    found = bits[candidates]
    least = np.partition(found, len(found) - kept)[len(found) - kept]
    chosen = found > least
    chosen[np.flatnonzero(found == least)[: kept - np.count_nonzero(chosen)]] = True
    places: Places = candidates[chosen]
    return places


def _guess(bits: Bits, kept: int) -> int:
    """What somewhat more than so many are above, most probably; -1 if any may be needed."""
    if len(bits) < SAMPLED_FROM:
        return -1
    sample = bits[::SAMPLE_STRIDE]
    expected = kept / SAMPLE_STRIDE
    # Three standard deviations more than expected: a sample too rich is one in a thousand.
    rank = math.ceil(expected + 3 * math.sqrt(expected) + 1)
    if rank > len(sample):
        return -1
    return int(np.partition(sample, len(sample) - rank)[len(sample) - rank])


def _are_more_infinite(bits: Bits, chosen: Places) -> bool:
    """Whether there are infinities or NaNs beside the chosen ones."""
    if bits[chosen].min() < INFINITY_BITS:
        return False
    return bool(np.count_nonzero(bits >= INFINITY_BITS) > len(chosen))
