"""Chunks of results: written into a rank's tensor, and kept for ranks that lack them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from gradwire_proto.chunks import overlap

if TYPE_CHECKING:
    from gradwire._collective import Collective
    from gradwire._order import Order
    from gradwire_proto.chunks import Cut
    from gradwire_proto.nonfinite import Finding


class Saved(NamedTuple):
    """The result of one chunk."""

    payload: bytes | memoryview
    finding: Finding | None
    chunks: int
    """Of its collective."""


def take_chunk(
    collective: Collective,
    cut: Cut,
    payload: bytes | memoryview,
    found: Finding | None,
    rank: int,
) -> bool:
    """Take the result of a collective's next chunk; whether that completes it on this rank."""
    start, stop = cut.range(collective.taken)
    if found is not None:
        collective.hear(found, start, stop, rank)
    if len(payload):
        write_chunk(collective.order, (start, stop), payload)
    collective.taken += 1
    return collective.taken == cut.count


def write_chunk(order: Order, extent: tuple[int, int], payload: bytes | memoryview) -> None:
    """Write what this rank takes of the result of the elements [start, stop)."""
    row, first = order.target
    target, size = row.view(torch.uint8).numpy(), row.itemsize
    result = np.frombuffer(payload, dtype=np.uint8)
    for part in order.takes:
        begin, end = overlap(extent, part)
        if begin < end:
            place = slice((begin - first) * size, (end - first) * size)
            target[place] = result[(begin - extent[0]) * size : (end - extent[0]) * size]
