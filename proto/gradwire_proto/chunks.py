"""How a tensor is cut: a tensor into chunks, a chunk into shares.

A *chunk* is the unit of the pipeline: it takes one slot, is reduced on its own and travels on
its own. A *share* is the part of a chunk that one node adds up.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

LEAST_ALONE_BYTES = 128 * 1024
"""A smaller chunk costs more to hand on from rank to rank than to add."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor of so many elements in chunks of `step` elements; the last may be shorter.

    A tensor of no elements has one empty chunk: so the ranks still meet, and a rank that
    brought more is found out.
    """

    elements: int
    step: int

    @property
    def count(self) -> int:
        """Chunks."""
        return max(1, -(-self.elements // self.step))

    def range(self, chunk: int) -> tuple[int, int]:
        """Elements [start, stop) of a chunk."""
        if not 0 <= chunk < self.count:
            raise ValueError(
                f"chunk {chunk} is outside a tensor of {self.count} chunks"
                f" ({self.elements} elements)"
            )
        return chunk * self.step, min(self.elements, (chunk + 1) * self.step)


def cut(elements: int, sum_itemsize: int, chunk_bytes: int) -> Cut:
    """How all nodes cut a tensor: a chunk's sum, in its own type, has at most chunk_bytes."""
    return Cut(elements, chunk_bytes // sum_itemsize)


def cut_alone(elements: int, sum_itemsize: int, chunk_bytes: int, ranks: int) -> Cut:
    """How a node without peers cuts: finer, so that its ranks work side by side.

    At least a chunk for every two of them, unless that gets too small.
    """
    size = elements * sum_itemsize // max(2, ranks // 2)
    fitting = min(max(size, LEAST_ALONE_BYTES), chunk_bytes)
    return Cut(elements, max(1, fitting // sum_itemsize))


def overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The elements [start, stop) that are in both; start and stop alike where there are none.

    An empty overlap lies within `one`.
    """
    if other[0] <= one[0] and one[1] <= other[1]:
        return one
    start = min(max(one[0], other[0]), one[1])
    return start, max(start, min(one[1], other[1]))


def share_ranges(
    shares: int, elements: int, weights: Sequence[Fraction] = ()
) -> list[tuple[int, int]]:
    """Elements [start, stop) of all shares of a chunk: equal, or in proportion to the weights.

    The weights are 1 in sum. Exact arithmetic, so that all nodes cut alike.
    """
    if not weights:
        return [share_range(share, shares, elements) for share in range(shares)]
    ends = [int(part * elements) for part in accumulate(weights)]
    return list(pairwise([0, *ends[:-1], elements]))


def share_range(share: int, shares: int, elements: int) -> tuple[int, int]:
    """Elements [start, stop) of a chunk of `elements` that are in this share.

    Shares differ by one element at most; where there are fewer elements than shares, some are
    empty.
    """
    if not 0 <= share < shares:
        raise ValueError(f"share {share} is outside a chunk of {shares} shares")
    return share * elements // shares, (share + 1) * elements // shares
