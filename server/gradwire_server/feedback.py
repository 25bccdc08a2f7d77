"""What lossy wires have lost, kept until the next time: error feedback.

Seide et al., "1-bit stochastic gradient descent" (2014); Karimireddy et al., "Error feedback
fixes SignSGD" (2019). Kept under the identity of what is reduced, for a tensor's elements alike
whether this node sends them as a part of its own sum, or, as the owner of their share, as a
result: it does one of the two with each.

A residual has two versions. While a round is carried out it reads one and writes the other; the
round's end makes that the one that counts, by a single word. So a round that fails, or is
carried out once more, finds what was there before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import mmap
import os
import secrets
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradwire_server.shared_memory import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

PAGE = 4096
_HEADER = struct.Struct("<8sIQQ")
_MAGIC, _VERSION = b"gradwres", 1

ITEMSIZE = 4
"""Residuals are fp32, as the sums that lossy wires carry."""

KEPT_TURNS = 16
"""What has not been used while all others were, so many times, belongs to nothing any more."""

TURNS_TO_LOOK = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """One residual as it counts, on its way to or from a checkpoint."""

    identity: int
    counts: tuple[int, ...]
    """How often each chunk has been reduced."""
    values: torch.Tensor
    """fp32, flat; empty where nothing is fed back."""


class _Entry:
    """One tensor's residual: a file on a tmpfs, so that it outlives the daemon.

    header | counts | version 0 | version 1; private memory where the file can't be had.
    """

    def __init__(
        self, identity: int, tensor_elements: int, elements: int, chunks: int, folder: Path
    ) -> None:
        """`elements`: of the residual; 0 where only the counts are kept."""
        self.tensor_elements = tensor_elements
        self.elements = elements
        self.chunks = chunks
        self.used = 0
        self.locks = [asyncio.Lock() for _ in range(chunks)]
        start = PAGE + _whole_pages(8 * chunks)
        size = start + 2 * _whole_pages(ITEMSIZE * elements)
        self._path = folder / f"{PREFIX}{secrets.token_hex(8)}"
        self._file = -1
        memory = self._map(size)
        memory[: _HEADER.size] = _HEADER.pack(_MAGIC, _VERSION, identity, elements)
        self._counts = memoryview(memory)[PAGE : PAGE + 8 * chunks].cast("q")
        self._versions = [
            torch.frombuffer(memory, dtype=torch.float32, count=elements, offset=offset)
            if elements
            else torch.empty(0)
            for offset in (start, start + _whole_pages(ITEMSIZE * elements))
        ]

    def _map(self, size: int) -> mmap.mmap:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o660)
            # Held while somebody uses it: see shared_memory.
            fcntl.flock(self._file, fcntl.LOCK_SH)
            os.posix_fallocate(self._file, 0, size)
            return mmap.mmap(self._file, size, flags=mmap.MAP_SHARED)
        except OSError as error:
            self.close()
            log.warning(
                "no shared memory for %d MiB of what lossy wires lose (%s): kept in this"
                " daemon's own, it would go with it",
                size >> 20,
                error.strerror,
            )
            return mmap.mmap(-1, size)

    def count(self, chunk: int) -> int:
        """How often the chunk has been reduced."""
        return self._counts[chunk]

    def version(self, count: int) -> torch.Tensor:
        """What counts after so many times."""
        return self._versions[count & 1]

    def commit(self, chunk: int) -> None:
        """The version written meanwhile counts now."""
        self._counts[chunk] += 1

    def restore(self, counts: tuple[int, ...], values: torch.Tensor, step: int) -> None:
        """Take over what was kept."""
        for chunk, count in enumerate(counts):
            self._counts[chunk] = count
            part = slice(chunk * step, (chunk + 1) * step)
            self.version(count)[part].copy_(values[part])

    def close(self) -> None:
        """Unlink the file; the memory goes with the last view of it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._path.unlink(missing_ok=True)


class Loan:
    """One chunk's residual, for one round."""

    def __init__(self, entry: _Entry, chunk: int, start: int, elements: int) -> None:
        self._entry = entry
        self._chunk = chunk
        self.count = entry.count(chunk)
        """How often the chunk has been reduced before."""
        if entry.elements:
            part = slice(start, start + elements)
            before = entry.version(self.count)[part] if self.count else None
            self.memory: tuple[torch.Tensor | None, torch.Tensor] | None = (
                before,
                entry.version(self.count + 1)[part],
            )
        else:
            self.memory = None
        """What was lost the last time, None the first; and where to write what is lost now."""

    def commit(self) -> None:
        """The round has its result: what was written counts."""
        self._entry.commit(self._chunk)

    def release(self) -> None:
        """The next round may have it."""
        self._entry.locks[self._chunk].release()


class Feedback:
    """All residuals of one generation at one node. Methods are called on the event loop."""

    def __init__(self, folder: Path, chunk_bytes: int) -> None:
        self._folder = folder
        self._step = chunk_bytes // ITEMSIZE
        self._entries: dict[int, _Entry] = {}
        self._turn = 0
        self.dropped = 0
        """Residuals that no longer fitted what has their identity, or that nothing uses."""

    async def lend(self, identity: int, elements: int, chunk: int, *, feedback: bool) -> Loan:
        """A chunk's residual, as soon as no other round has it; release it in the end.

        `elements` are the whole tensor's. Without feedback nothing but the count is kept.
        """
        entry = self._find(identity, elements, kept=elements if feedback else 0)
        await entry.locks[chunk].acquire()
        start = chunk * self._step
        return Loan(entry, chunk, start, min(self._step, elements - start))

    def _find(self, identity: int, elements: int, *, kept: int) -> _Entry:
        chunks = self._chunks(elements)
        entry = self._entries.get(identity)
        if entry is not None and (entry.elements, entry.tensor_elements) != (kept, elements):
            self._drop(identity, "it belongs to a tensor of another size")
            entry = None
        if entry is None:
            entry = _Entry(identity, elements, kept, chunks, self._folder)
            self._entries[identity] = entry
        self._turn += 1
        entry.used = self._turn
        if self._turn % TURNS_TO_LOOK == 0:
            self._drop_unused()
        return entry

    def _chunks(self, elements: int) -> int:
        return max(1, -(-elements // self._step))

    def _drop_unused(self) -> None:
        oldest, entry = min(self._entries.items(), key=lambda item: item[1].used)
        turns = sum(each.chunks for each in self._entries.values())
        unused = self._turn - entry.used > KEPT_TURNS * turns
        if unused and not any(lock.locked() for lock in entry.locks):
            self._drop(oldest, "nothing has used it for long")

    def _drop(self, identity: int, reason: str) -> None:
        self._entries.pop(identity).close()
        self.dropped += 1
        log.info("what was lost of %016x is dropped: %s", identity, reason)

    # -- checkpoints

    def kept(self) -> Iterator[tuple[Kept, int]]:
        """All residuals, and how many elements their tensors have.

        No round that changes them may be under way meanwhile.
        """
        for identity, entry in list(self._entries.items()):
            counts = tuple(entry.count(chunk) for chunk in range(entry.chunks))
            values = torch.zeros(entry.elements)
            for chunk, count in enumerate(counts):
                part = slice(chunk * self._step, (chunk + 1) * self._step)
                if count:
                    values[part].copy_(entry.version(count)[part])
            yield Kept(identity, counts, values), entry.tensor_elements

    def restore(self, kept: Kept, elements: int) -> bool:
        """Go on with this residual of a tensor of so many elements; whether it fits.

        Chunks may be cut otherwise than when it was kept, if all had been reduced as often.
        """
        chunks, counts = self._chunks(elements), kept.counts
        if len(counts) != chunks and len(set(counts)) == 1:
            counts = counts[:1] * chunks
        if len(counts) != chunks or len(kept.values) not in (0, elements) or min(counts) < 0:
            self.dropped += 1
            return False
        with contextlib.suppress(KeyError):
            self._entries.pop(kept.identity).close()
        size = len(kept.values)
        entry = _Entry(kept.identity, elements, size, chunks, self._folder)
        entry.restore(counts, kept.values, self._step)
        entry.used = self._turn
        self._entries[kept.identity] = entry
        return True

    def close(self) -> None:
        """Unlink all files."""
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()


def _whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
