"""How much of the letters from one rank to another may be under way. No I/O.

Senders keep to it; daemons, whose memory it bounds, hold them to it. For each pair of ranks a
daemon holds offers of MOST_LETTERS letters at most, of which MOST_SMALL_BYTES travel with their
offers, and PAGES pages.
"""

from __future__ import annotations

MOST_LETTERS = 1024
"""Letters of one rank that another has not taken yet; further ones wait at their sender."""

SMALL_BYTES = 64 << 10
"""A letter of so many bytes may travel with its offer."""

MOST_SMALL_BYTES = 256 << 10
"""So many bytes may travel with the offers of letters that were not taken yet."""

PAGE_BYTES = 2 << 20
PAGES = 4
"""From one rank to one other, sent and not arrived."""

MOST_COMING = 4
"""Letters that one rank has coming in pages at once; bounds what its daemon holds for it."""


def page_bytes(chunk_bytes: int) -> int:
    """Bytes of the longest page, where a chunk has so many."""
    return min(PAGE_BYTES, chunk_bytes)
