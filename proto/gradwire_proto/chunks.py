"""How a tensor is cut: a tensor into chunks, a chunk into shares.

A *chunk* is the unit of the pipeline: it takes one slot, is reduced on its own and travels on
its own. A *share* is the part of a chunk that one node adds up.
"""

from __future__ import annotations


def chunk_count(size: int, chunk_bytes: int) -> int:
    """Chunks of a tensor of `size` bytes; an empty tensor has one empty chunk.

    It has one so that the ranks still meet, and a rank that brought more is found out.
    """
    return max(1, -(-size // chunk_bytes))


def chunk_range(chunk: int, size: int, chunk_bytes: int) -> tuple[int, int]:
    """Bytes [start, stop) of a tensor of `size` bytes that are in this chunk."""
    count = chunk_count(size, chunk_bytes)
    if not 0 <= chunk < count:
        raise ValueError(f"chunk {chunk} is outside a tensor of {count} chunks ({size} bytes)")
    return chunk * chunk_bytes, min(size, (chunk + 1) * chunk_bytes)


def share_range(share: int, shares: int, elements: int) -> tuple[int, int]:
    """Elements [start, stop) of a chunk of `elements` that are in this share.

    Shares differ by one element at most; where there are fewer elements than shares, some are
    empty.
    """
    if not 0 <= share < shares:
        raise ValueError(f"share {share} is outside a chunk of {shares} shares")
    return share * elements // shares, (share + 1) * elements // shares
