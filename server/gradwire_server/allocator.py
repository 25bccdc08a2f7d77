"""Tells the C allocator to keep what it has: frames of a megabyte come and go all the time.

By default glibc gives memory of that size back to the kernel at once, and the kernel clears
every page again for the next frame: a sixth of an exchange between two nodes. See mallopt(3).
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3

KEPT_BYTES = 256 << 20
"""Free memory at the end of the heap up to this much is kept for the next frames."""

STEP_BYTES = 16 << 20
HEAP_BYTES = 32 << 20
"""Blocks below this size, the most that glibc allows, come from the heap."""


def keep_memory() -> None:
    """Does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, STEP_BYTES)
