"""The memory of one residual: a file on a tmpfs, so that it outlives the daemon.

    header | counts, one word a chunk | pending, one word a chunk | version 0 | version 1

The count of a chunk says how often it has been reduced, and thereby which version counts. What
is pending says which collective was the last to write the other one, so that whoever comes
after a daemon that was killed can tell whether that counts. The files of a generation's node
bear its name, and beside them lies an empty one that its ranks hold a lock on: while they do,
the files are theirs.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import struct
from typing import TYPE_CHECKING

import torch

from gradwire_proto.residuals import ITEMSIZE

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire_server.memory_folder import MemoryFolder

log = logging.getLogger(__name__)

PAGE = 4096
_HEADER = struct.Struct("<8sIQQQQQ")
_MAGIC, _VERSION = b"gradwres", 2
_BASE_BITS = 24


class ResidualFile:
    """Two versions of so many fp32 elements, and their counts."""

    def __init__(self, memory: mmap.mmap, path: Path | None) -> None:
        """Memory that has a header. Raises ValueError where that makes no sense."""
        self._path = path
        magic, version, *numbers = _HEADER.unpack_from(memory)
        whole, elements, chunks = numbers[1], numbers[2], numbers[4]
        self.identity: int = numbers[0]
        self.whole: int = whole
        """Elements of the tensor."""
        self.elements: int = elements
        """Those that are fed back: all, or none."""
        size = self.size(self.elements, chunks)
        if (magic, version) != (_MAGIC, _VERSION) or len(memory) != size:
            raise ValueError(f"{path} is no residual of this release")
        words = memoryview(memory)[PAGE : PAGE + 16 * chunks].cast("q")
        self.counts = words[:chunks]
        """How often each chunk has been reduced."""
        self._pending = words[chunks:]
        first = PAGE + _whole_pages(16 * chunks)
        second = first + _whole_pages(ITEMSIZE * self.elements)
        self._versions = [_floats(memory, self.elements, offset) for offset in (first, second)]

    @classmethod
    def create(  # noqa: PLR0913 - what its header says, and where
        cls,
        identity: int,
        whole: int,
        elements: int,
        step: int,
        folder: MemoryFolder,
        name: str,
    ) -> ResidualFile:
        """For a tensor of `whole` elements, of which `elements`, all or none, are fed back.

        In private memory where there is not enough of the shared. Raises OSError, ValueError or
        OverflowError where there is none of that either.
        """
        chunks = max(1, -(-whole // step))
        path = folder.path / f"{name}-{identity:016x}-{secrets.token_hex(4)}"
        memory, found = _map(path, cls.size(elements, chunks), folder)
        head = _MAGIC, _VERSION, identity, whole, elements, step, chunks
        memory[: _HEADER.size] = _HEADER.pack(*head)
        return cls(memory, found)

    @classmethod
    def open(cls, path: Path) -> ResidualFile:
        """What a daemon before this one has made. Raises OSError or ValueError."""
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            return cls(mmap.mmap(file, os.fstat(file).st_size, flags=mmap.MAP_SHARED), path)
        finally:
            os.close(file)

    @staticmethod
    def size(elements: int, chunks: int) -> int:
        """Bytes of the file."""
        return PAGE + _whole_pages(16 * chunks) + 2 * _whole_pages(ITEMSIZE * elements)

    def begin(self, chunk: int, number: int) -> None:
        """This collective, by its number over all attempts, writes the next version."""
        base = self.counts[chunk] & ((1 << _BASE_BITS) - 1)
        # One word, so that it is there or is not, whenever the daemon ends.
        self._pending[chunk] = (number + 1) << _BASE_BITS | base

    def pending(self, chunk: int) -> tuple[int, int] | None:
        """Which collective was the last to write, and the count before it counted."""
        word, count = self._pending[chunk], self.counts[chunk]
        if not word:
            return None
        # It has counted, or has not.
        ahead = (count - word) & ((1 << _BASE_BITS) - 1)
        return (word >> _BASE_BITS) - 1, count - min(ahead, 1)

    def revert(self, chunk: int) -> None:
        """What was written last does not count, and never will."""
        if (pending := self.pending(chunk)) is not None:
            self.counts[chunk] = pending[1]
            self._pending[chunk] = 0

    def version(self, count: int) -> torch.Tensor:
        """What counts after so many times."""
        return self._versions[count & 1]

    def close(self) -> None:
        """Unlink the file; the memory goes with the last view of it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def _map(path: Path, size: int, folder: MemoryFolder) -> tuple[mmap.mmap, Path | None]:
    try:
        return _create(path, size, folder), path
    except OSError as error:
        path.unlink(missing_ok=True)
        if (limit := folder.limit(size)) is not None:
            raise OSError(error.errno, limit) from error
        log.info("no file %s: %s", path, error.strerror)
    log.warning(
        "no shared memory in %s for %d MiB of what lossy wires lose: kept in this daemon's own,"
        " it would go with it",
        folder.path,
        size >> 20,
    )
    return mmap.mmap(-1, size), None


def _create(path: Path, size: int, folder: MemoryFolder) -> mmap.mmap:
    file = folder.reserve(path, size)
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
