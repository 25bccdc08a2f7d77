"""How what a lossy wire has lost travels between a daemon and a rank's checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMSIZE = 4
"""Residuals are fp32, as the sums that lossy wires carry."""

PART_ELEMENTS = 1 << 18
"""In one message."""

MOST_COUNT = 1 << 62
"""No chunk has been reduced so often."""


def parts_of(identity: int, values: torch.Tensor) -> Iterator[pb.Residual]:
    """What comes behind a residual's head: flat fp32 values, in order."""
    for start in range(0, values.numel(), PART_ELEMENTS):
        part = values[start : start + PART_ELEMENTS]
        payload = bytes(part.view(torch.uint8).numpy().data)
        yield pb.Residual(identity=identity, payload=payload)
