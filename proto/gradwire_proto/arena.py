"""Layout of an arena: the memory that a daemon and its ranks share, for one generation.

    header | result slots | slots of local rank 0 | slots of local rank 1 | ...

A rank writes a chunk into a slot of its own and never sees it change; the daemon adds into a
result slot, which all local ranks read. So a contribution outlives its round, and a result is
written once however many ranks there are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_BYTES = 4096
NONCE_BYTES = 16

_MAGIC = b"gradwire"
_VERSION = 1
_HEADER = struct.Struct(f"<8sIIIQ{NONCE_BYTES}s")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies, in bytes from the start of the arena."""

    ranks: int
    slots: int
    slot_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole arena."""
        return HEADER_BYTES + (1 + self.ranks) * self.slots * self.slot_bytes

    def result(self, slot: int) -> int:
        """Offset of a result slot."""
        return self._offset(0, slot)

    def contribution(self, local_rank: int, slot: int) -> int:
        """Offset of a slot that a local rank writes."""
        if not 0 <= local_rank < self.ranks:
            raise ValueError(
                f"local rank {local_rank} is outside an arena of {self.ranks} ranks"
            )
        return self._offset(1 + local_rank, slot)

    def _offset(self, row: int, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise ValueError(f"slot {slot} is outside an arena of {self.slots} slots a rank")
        return HEADER_BYTES + (row * self.slots + slot) * self.slot_bytes


def pack_header(layout: Layout, nonce: bytes) -> bytes:
    """The first bytes of an arena."""
    return _HEADER.pack(_MAGIC, _VERSION, layout.ranks, layout.slots, layout.slot_bytes, nonce)


def unpack_header(header: bytes) -> tuple[Layout, bytes]:
    """Layout and nonce; raises ValueError where this is no arena of ours."""
    if len(header) < _HEADER.size:
        raise ValueError(f"an arena has a header of {_HEADER.size} bytes, got {len(header)}")
    magic, version, ranks, slots, slot_bytes, nonce = _HEADER.unpack_from(header)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"expected an arena of version {_VERSION}, got {magic!r} {version}")
    return Layout(ranks, slots, slot_bytes), nonce
