"""Maps the arena that this rank shares with its daemon and the other ranks of its node."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gradwire_proto.arena import HEADER_BYTES, Layout, unpack_header
from gradwire_proto.arithmetic import view
from gradwire_proto.control import Control
from gradwire_proto.semaphore import MONOTONIC

if TYPE_CHECKING:
    import torch

    from gradwire_proto.arithmetic import Arithmetic
    from gradwire_proto.v1 import aggregator_pb2 as pb

Bytes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Flat bytes."""


def from_now(seconds: float) -> float:
    """The time until which Control.wait is to wait."""
    return (time.monotonic() if MONOTONIC else time.time()) + seconds


class Keeper:
    """A lock on a generation's files, for as long as this rank has a seat or wants one."""

    def __init__(self, path: str) -> None:
        """Raises OSError where it can't be reached from here."""
        self._path = Path(path)
        self._file = os.open(path, os.O_RDWR)
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self, *, orphaned: bool) -> None:
        """Let go; unlink all files of the generation where no daemon will."""
        os.close(self._file)
        if orphaned:
            name = self._path.name.removesuffix("-keep")
            for path in self._path.parent.glob(f"{name}-*"):
                path.unlink(missing_ok=True)


class Arena:
    """The node's slots as tensors, and its counters."""

    def __init__(self, arena: pb.Arena) -> None:
        """Raises OSError or ValueError where the daemon's memory can't be reached from here."""
        self.local_rank: int = arena.local_rank
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
        self.control = Control(memory, layout)
        self._bytes = np.frombuffer(memory, dtype=np.uint8)
        self._address = self._bytes.ctypes.data
        self._tensors: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def total(self, ticket: int, arithmetic: Arithmetic) -> torch.Tensor:
        """A ticket's sum, in its type; longer than the chunk."""
        slot = ticket % self.layout.slots
        return self._tensor(2 * slot, arithmetic.wide)

    def result(self, ticket: int, arithmetic: Arithmetic) -> torch.Tensor:
        """Its result, in the tensor's own type; longer than the chunk."""
        slot, narrow = ticket % self.layout.slots, arithmetic.dtype
        return self._tensor(2 * slot + (narrow != arithmetic.wide), narrow)

    def result_address(self, ticket: int, arithmetic: Arithmetic) -> int:
        """Where that lies in this process, for who only copies.

        memcpy takes two thirds of the time of torch's copy_, and no tensor has to be made.
        """
        slot, beside = ticket % self.layout.slots, arithmetic.dtype != arithmetic.wide
        return self._address + self.layout.slot(slot) + beside * self.layout.chunk_bytes

    def _tensor(self, place: int, dtype: torch.dtype) -> torch.Tensor:
        """All that can lie there; made once: making a tensor takes longer than cutting it."""
        made = self._tensors.get((place, dtype))
        if made is None:
            offset, size = self.layout.slot(place // 2), self.layout.chunk_bytes
            if place % 2:
                offset, size = offset + size, size // 2
            made = view(self._bytes[offset : offset + size], dtype)
            self._tensors[place, dtype] = made
        return made

    def close(self, *, orphaned: bool) -> None:
        """Let go of the memory; unlink its file where the daemon can't any more.

        Nobody may use the arena any more.
        """
        self._tensors.clear()
        self._bytes = np.empty(0, dtype=np.uint8)
        self.control.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if orphaned:
            try:
                os.unlink(self._path)
            except OSError:
                return
