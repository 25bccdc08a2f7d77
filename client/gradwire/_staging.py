"""Between a device and the host: pinned memory, filled and read on a stream of its own.

Training goes on on the device's current stream; only what a copy reads is waited for. A copy
has been made when these functions return.
"""

from __future__ import annotations

from functools import cache

import torch


def row(like: torch.Tensor, numbers: int) -> torch.Tensor:
    """Memory of the host for so many real numbers of this tensor's dtype."""
    dtype = like.dtype.to_real() if like.is_complex() else like.dtype
    return torch.empty(numbers, dtype=dtype, pin_memory=like.is_cuda)


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy between two devices, or on the host."""
    device = next((each.device for each in (target, source) if each.is_cuda), None)
    if device is None:
        target.copy_(source)
        return
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        target.copy_(source, non_blocking=True)
    side.synchronize()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
