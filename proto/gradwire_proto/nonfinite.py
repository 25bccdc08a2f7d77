"""NaNs and infinities: how they are found, and what is said of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from gradwire_proto.v1 import tensor_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

NOBODY = 1 << 32
"""No rank is known to have brought it; more than any rank."""


class Finding(NamedTuple):
    """Something is not finite. The least of several is that of the lowest rank."""

    rank: int
    """Who brought it, or NOBODY."""
    element: int
    """Which element of the chunk, or of the tensor, it is: the first."""

    def moved(self, elements: int) -> Finding:
        """The same, counted from so many elements before."""
        return Finding(self.rank, self.element + elements)

    def write(self) -> pb.NonFinite:
        """The message that says so."""
        message = pb.NonFinite(element=self.element)
        if self.rank != NOBODY:
            message.rank = self.rank
        return message


def read(message: pb.NonFinite) -> Finding:
    """What a message says."""
    return Finding(message.rank if message.HasField("rank") else NOBODY, message.element)


def least(findings: Iterable[Finding | None]) -> Finding | None:
    """The one that all agree on."""
    return min((each for each in findings if each is not None), default=None)


def first_nonfinite(values: torch.Tensor, start: int = 0) -> int | None:
    """Which element of a flat, floating tensor is the first that is not finite, counted from
    `start`.

    Costs as much as a sum, unless there is one, or the sum overflows.
    """
    # A sum is finite only where all elements are; isfinite itself takes 40 times as long.
    if math.isfinite(values.sum().item()):
        return None
    narrow = values.itemsize < torch.float32.itemsize
    if narrow and math.isfinite(values.sum(dtype=torch.float32).item()):
        # 65504 is soon reached.
        return None
    found = values.isfinite().logical_not_().nonzero()
    return start + int(found[0]) if len(found) else None
