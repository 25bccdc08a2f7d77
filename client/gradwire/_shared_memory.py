"""Maps the arena that this rank shares with its daemon.

Bytes are numpy's here, not torch's: torch would copy with its own thread pool, once more for
every thread of ours, and the training has better use for the cores.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gradwire._errors import LostError
from gradwire_proto.arena import HEADER_BYTES, Layout, unpack_header

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb

Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Flat bytes."""


class Arena:
    """This rank's slots, and the results, as arrays of bytes."""

    def __init__(self, arena: pb.Arena) -> None:
        """Raises OSError or ValueError where the daemon's memory can't be reached from here."""
        self._local_rank = arena.local_rank
        file = os.open(arena.path, os.O_RDWR)
        try:
            # Held as long as the process may write: an arena without a lock is nobody's.
            fcntl.flock(file, fcntl.LOCK_SH)
            layout, nonce = unpack_header(os.pread(file, HEADER_BYTES, 0))
            if nonce != arena.nonce:
                raise ValueError(f"{arena.path} is another daemon's arena")
            self.layout: Layout = layout
            memory = mmap.mmap(file, layout.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._path = arena.path
        self._bytes: Bytes | None = np.frombuffer(memory, dtype=np.uint8)

    def slot(self, slot: int, size: int) -> Bytes:
        """The first bytes of one of this rank's slots."""
        return self._slice(self.layout.contribution(self._local_rank, slot), size)

    def result(self, slot: int, size: int) -> Bytes:
        """The first bytes of a result slot."""
        return self._slice(self.layout.result(slot), size)

    def _slice(self, offset: int, size: int) -> Bytes:
        memory = self._bytes
        if memory is None:
            raise LostError("this session is over; its shared memory is gone")
        return memory[offset : offset + size]

    def close(self, *, orphaned: bool) -> None:
        """Let go of the memory; unlink its file where the daemon can't any more."""
        self._bytes = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if orphaned:
            try:
                os.unlink(self._path)
            except OSError:
                return
