"""Layout of an arena: the memory that a daemon and its ranks share, for one generation.

    header | node block | rank blocks | slot blocks | slots

A slot holds one chunk: its sum, as it passes from rank to rank, and its result. The blocks hold
the counters that say how far everybody is (see control.py). Tensors themselves are never
copied in: each rank adds its own, where it lies, to the sum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_BYTES = 4096
NODE_BYTES = 256
RANK_BYTES = (1 << 10) + (16 << 10)
"""Counters, and what the rank has done lately, while somebody wants to know."""
SLOT_BLOCK_BYTES = 2176
NONCE_BYTES = 16

_PAGE = 4096
_MAGIC = b"gradwire"
_VERSION = 5
_HEADER = struct.Struct(f"<8sIIIQ{NONCE_BYTES}s")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies, in bytes from the start of the arena."""

    ranks: int
    slots: int
    chunk_bytes: int
    """Most bytes of a chunk's sum, in the type in which it is summed."""

    @property
    def size(self) -> int:
        """Bytes of the whole arena."""
        return self._slots + self.slots * self.slot_bytes

    @property
    def slot_bytes(self) -> int:
        """A sum, and beside it a result of another type: half as wide at most."""
        return _whole_pages(self.chunk_bytes + self.chunk_bytes // 2)

    @property
    def node_block(self) -> int:
        """Offset of the block that is the daemon's to write."""
        return HEADER_BYTES

    def rank_block(self, local_rank: int) -> int:
        """Offset of the block that a local rank writes."""
        if not 0 <= local_rank < self.ranks:
            raise ValueError(
                f"local rank {local_rank} is outside an arena of {self.ranks} ranks"
            )
        return HEADER_BYTES + NODE_BYTES + local_rank * RANK_BYTES

    def slot_block(self, slot: int) -> int:
        """Offset of what is said of a slot's chunk."""
        self._check(slot)
        return self._slot_blocks + slot * SLOT_BLOCK_BYTES

    def slot(self, slot: int) -> int:
        """Offset of a chunk's sum; also of its result, where that is of the same type."""
        self._check(slot)
        return self._slots + slot * self.slot_bytes

    @property
    def _slot_blocks(self) -> int:
        return _whole_pages(HEADER_BYTES + NODE_BYTES + self.ranks * RANK_BYTES)

    @property
    def _slots(self) -> int:
        return _whole_pages(self._slot_blocks + self.slots * SLOT_BLOCK_BYTES)

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is outside an arena of {self.slots} slots")


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def pack_header(layout: Layout, nonce: bytes) -> bytes:
    """The first bytes of an arena."""
    return _HEADER.pack(_MAGIC, _VERSION, layout.ranks, layout.slots, layout.chunk_bytes, nonce)


def unpack_header(header: bytes) -> tuple[Layout, bytes]:
    """Layout and nonce; raises ValueError where this is no arena of ours."""
    if len(header) < _HEADER.size:
        raise ValueError(f"an arena has a header of {_HEADER.size} bytes, got {len(header)}")
    magic, version, ranks, slots, chunk_bytes, nonce = _HEADER.unpack_from(header)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"expected an arena of version {_VERSION}, got {magic!r} {version}")
    return Layout(ranks, slots, chunk_bytes), nonce
