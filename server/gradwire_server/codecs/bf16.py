"""The upper half of an fp32: its range, and 8 bits of precision."""

from __future__ import annotations

import torch

from gradwire_server.codecs.base import ALIGNMENT, SEGMENT_ELEMENTS


class Bf16:
    """See Codec. Rounds to the nearest, ties to even; above 3.39e38 that is infinity."""

    segment = SEGMENT_ELEMENTS

    def size(self, elements: int) -> int:
        """See Codec."""
        return -(-2 * elements // ALIGNMENT) * ALIGNMENT

    def encode(self, values: torch.Tensor, data: torch.Tensor, seed: int) -> None:
        """See Codec."""
        written = data.view(torch.bfloat16)
        written[: values.numel()].copy_(values)
        written[values.numel() :].zero_()

    def decode(self, data: torch.Tensor, values: torch.Tensor) -> None:
        """See Codec."""
        values.copy_(data.view(torch.bfloat16)[: values.numel()])
