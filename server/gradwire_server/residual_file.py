"""The memory of one residual: a file on a tmpfs, so that it outlives the daemon.

    header | counts, one word a chunk | version 0 | version 1

The count of a chunk says how often it has been reduced, and thereby which version counts.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import struct
from typing import TYPE_CHECKING

import torch

from gradwire_proto.residuals import ITEMSIZE
from gradwire_server.shared_memory import PREFIX, reserve, room

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

PAGE = 4096
_HEADER = struct.Struct("<8sIQQQ")
_MAGIC, _VERSION = b"gradwres", 1


class ResidualFile:
    """Two versions of so many fp32 elements, and their counts."""

    def __init__(
        self, identity: int, elements: int, chunks: int, step: int, folder: Path
    ) -> None:
        """In private memory where there is not enough of the shared.

        Raises OSError, ValueError or OverflowError where there is none of that either.
        """
        self.elements = elements
        self._path: Path | None = None
        size = self.size(elements, chunks)
        memory = self._map(size, folder)
        memory[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, identity, elements, step)
        self.counts = memoryview(memory)[PAGE : PAGE + 8 * chunks].cast("q")
        """How often each chunk has been reduced."""
        first = PAGE + _whole_pages(8 * chunks)
        second = first + _whole_pages(ITEMSIZE * elements)
        self._versions = [_floats(memory, elements, offset) for offset in (first, second)]

    @staticmethod
    def size(elements: int, chunks: int) -> int:
        """Bytes of the file."""
        return PAGE + _whole_pages(8 * chunks) + 2 * _whole_pages(ITEMSIZE * elements)

    def _map(self, size: int, folder: Path) -> mmap.mmap:
        # tmpfs would first take what there is, and then say that it was not enough.
        if room(folder) >= size:
            path = folder / f"{PREFIX}{secrets.token_hex(8)}"
            try:
                memory = _create(path, size)
            except OSError as error:
                path.unlink(missing_ok=True)
                log.info("no file %s: %s", path, error.strerror)
            else:
                self._path = path
                return memory
        log.warning(
            "no shared memory in %s for %d MiB of what lossy wires lose: kept in this daemon's"
            " own, it would go with it",
            folder,
            size >> 20,
        )
        return mmap.mmap(-1, size)

    def version(self, count: int) -> torch.Tensor:
        """What counts after so many times."""
        return self._versions[count & 1]

    def close(self) -> None:
        """Unlink the file; the memory goes with the last view of it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def _create(path: Path, size: int) -> mmap.mmap:
    file = reserve(path, size)
    try:
        # The mapping has a descriptor of its own, which holds the lock from here on.
        return mmap.mmap(file, size, flags=mmap.MAP_SHARED)
    finally:
        os.close(file)


def _floats(memory: mmap.mmap, elements: int, offset: int) -> torch.Tensor:
    if not elements:
        return torch.empty(0)
    return torch.frombuffer(memory, dtype=torch.float32, count=elements, offset=offset)


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
