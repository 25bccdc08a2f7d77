"""What a job has agreed on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradwire_server.memory_folder import MemoryFolder
from gradwire_server.transport.credentials import PLAIN, Plain
from gradwire_server.transport.stripes import AUTO

if TYPE_CHECKING:
    from gradwire_proto.v1 import peer_pb2
    from gradwire_server.group import Picture


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job has agreed on."""

    chunk_bytes: int
    slots: int
    timeout_seconds: float
    warn_seconds: float
    schedule: peer_pb2.Schedule | None = None
    """None: chosen for each chunk."""
    connections: int = AUTO
    """To each other node; as this node wants it where it dials."""
    folder: MemoryFolder = field(default_factory=MemoryFolder)
    urgent: bool = False
    """Goes before other generations on the way to the same nodes."""
    resume_seconds: float = 0.0
    """How long a lost link or daemon is waited for; 0: not at all."""
    first_timeout_seconds: float = 0.0
    """Of rounds of the first training step, where that is longer."""
    credentials: Plain = PLAIN
    """What this node shows to the others."""

    job: str = ""
    """Its name, as its ranks' tokens have it."""

    def geometry(self, picture: Picture) -> int:
        """Digests all that says which node adds up which elements: what one has lost is of no
        use where that differs. 64 bits.
        """
        cut = self.chunk_bytes, self.schedule, len(picture.nodes), picture.bandwidths
        digest = hashlib.blake2b(repr(cut).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")
