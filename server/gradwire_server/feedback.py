"""What lossy wires have lost, kept until the next time: error feedback.

Seide et al., "1-bit stochastic gradient descent" (2014); Karimireddy et al., "Error feedback
fixes SignSGD" (2019). Kept under the identity of what is reduced, for a tensor's elements alike
whether this node sends them as a part of its own sum, or, as the owner of their share, as a
result: it does one of the two with each.

A residual has two versions. While a collective is carried out its rounds read one and write the
other; only once all of them have a result does that count, by one word for each chunk. So one
that fails, or is carried out once more, finds what was there before it; and as long as no other
has begun, it can be revoked.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradwire_proto.residuals import ITEMSIZE, MOST_COUNT
from gradwire_server.errors import ReductionError
from gradwire_server.memory_folder import PREFIX
from gradwire_server.residual_file import ResidualFile
from gradwire_server.shared_memory import keeper

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Sequence

    from gradwire_proto.progress import Muster
    from gradwire_server.memory_folder import MemoryFolder
    from gradwire_server.metrics import Metrics
    from gradwire_server.round import Coding

log = logging.getLogger(__name__)

BRIEF_USES, LONG_UNUSED = 2, 256
"""What was used so seldom, and not while all others were so many times, was a bucket that is no
more: DDP builds its buckets anew after the first step."""

MOST_ENTRIES = 2048
"""Each has a file. Beyond that, what was not used for the longest goes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One residual as it counts, on its way to or from a checkpoint."""

    identity: int
    elements: int
    """Of the tensor."""
    counts: tuple[int, ...]
    """How often each chunk has been reduced."""
    size: int
    """Elements of the residual: the tensor's, or 0 where nothing is fed back."""


class _Entry:
    """One tensor's residual, and who uses it."""

    def __init__(self, file: ResidualFile) -> None:
        self.elements = file.whole
        self.file = file
        self.used = 0
        self.locks: dict[int, asyncio.Lock] = {}
        self.revocable: set[int] = set()
        """Chunks whose last version but one is there still."""

    def lock(self, chunk: int) -> asyncio.Lock:
        """Held by the round that uses the chunk, until its collective has ended."""
        return self.locks.setdefault(chunk, asyncio.Lock())

    @property
    def is_brief(self) -> bool:
        """It was used hardly ever."""
        return max(self.file.counts) <= BRIEF_USES

    @property
    def is_lent(self) -> bool:
        """A round uses it."""
        return any(lock.locked() for lock in self.locks.values())


class Loan:
    """One chunk's residual, for one round."""

    def __init__(self, entry: _Entry, chunk: int, part: slice, number: int) -> None:
        self._entry = entry
        self._chunk = chunk
        file = entry.file
        file.begin(chunk, number)
        self.count: int = file.counts[chunk]
        """How often the chunk has been reduced before."""
        self.memory: tuple[torch.Tensor | None, torch.Tensor] | None = None
        """What was lost the last time, None the first, and where to write what is lost now;
        nothing at all where nothing is fed back."""
        if file.elements:
            before = file.version(self.count)[part] if self.count else None
            self.memory = (before, file.version(self.count + 1)[part])

    @property
    def chunks(self) -> int:
        """Of the tensor."""
        return len(self._entry.file.counts)

    def commit(self) -> None:
        """What was written counts."""
        self._entry.file.counts[self._chunk] += 1
        self._entry.revocable.add(self._chunk)

    def release(self) -> None:
        """The next round may have it."""
        self._entry.lock(self._chunk).release()


class Feedback:
    """All residuals of one generation at one node. Methods are called on the event loop."""

    def __init__(
        self,
        folder: MemoryFolder,
        chunk_bytes: int,
        metrics: Metrics | None = None,
        name: str = PREFIX,
    ) -> None:
        """`name`: how the names of all files begin."""
        self._folder = folder
        self._name = name
        self._shift = 0
        """A collective's sequence less its number over all attempts."""
        self._begun = (-1, 0)
        """A collective of which an earlier attempt has reduced so many chunks."""
        self._step = chunk_bytes // ITEMSIZE
        self._metrics = metrics
        self._entries: dict[int, _Entry] = {}
        self._collectives: dict[int, list[Loan]] = {}
        """Loans of rounds with a result, while others of their collective have none."""
        self._making = asyncio.Lock()
        self._turn = 0
        self.dropped = 0
        """Residuals that no longer fitted what has their identity, or that nothing used."""

    # -- rounds

    async def lend(self, coding: Coding, elements: int, chunk: int, sequence: int = 0) -> Loan:
        """A chunk's residual, as soon as no other round has it; see Spec for what is revoked.

        `elements` are the whole tensor's, `sequence` its collective's. Without feedback nothing
        but the count is kept. It must be given back, by `done` or `Loan.release`. Raises
        ReductionError where there is no memory for it.
        """
        size = elements if coding.feedback else 0
        entry = await self._find(coding.identity, elements, size)
        await entry.lock(chunk).acquire()
        if chunk in entry.revocable:
            entry.file.counts[chunk] -= coding.revoked
            entry.revocable.remove(chunk)
        part = slice(chunk * self._step, (chunk + 1) * self._step)
        return Loan(entry, chunk, part, sequence - self._shift)

    def done(self, sequence: int, loan: Loan) -> None:
        """A round has its result. With the last of its collective all count."""
        loans = self._collectives.setdefault(sequence, [])
        loans.append(loan)
        before = self._begun[1] if sequence == self._begun[0] else 0
        if len(loans) == loan.chunks - before:
            self._end(sequence, commit=True)

    def failed(self, sequence: int) -> None:
        """The collective has failed: nothing of it counts."""
        self._end(sequence, commit=False)
        for entry in self._entries.values():
            for chunk in range(len(entry.file.counts)):
                pending = entry.file.pending(chunk)
                if pending is not None and pending[0] == sequence - self._shift:
                    entry.file.revert(chunk)
                    entry.revocable.discard(chunk)

    def adopt(self) -> None:
        """Go on with what a daemon before this one had of this generation."""
        for path in self._folder.path.glob(f"{self._name}-*"):
            if path == keeper(self._folder.path, self._name):
                continue
            try:
                file = ResidualFile.open(path)
            except (OSError, ValueError, struct.error) as error:
                log.warning("what was lost before is lost: %s", error)
                continue
            self._entries[file.identity] = _Entry(file)

    def resume(self, muster: Muster) -> None:
        """Of what an earlier attempt has begun, let that count which has a result."""
        self._shift = 1
        self._begun = (muster.high.collective + 1, muster.high.chunk)
        self._collectives.clear()
        for entry in self._entries.values():
            entry.locks.clear()
            entry.revocable.clear()
            for chunk in range(len(entry.file.counts)):
                if (pending := entry.file.pending(chunk)) is None:
                    continue
                number, base = pending
                if number in muster.lapses or (number, chunk) >= muster.high:
                    entry.file.revert(chunk)
                else:
                    entry.file.counts[chunk] = base + 1
                    entry.revocable.add(chunk)

    def _end(self, sequence: int, *, commit: bool) -> None:
        for loan in self._collectives.pop(sequence, ()):
            if commit:
                loan.commit()
            loan.release()

    async def _find(self, identity: int, elements: int, size: int) -> _Entry:
        # One at a time: two chunks of a new tensor come side by side.
        async with self._making:
            entry = self._entries.get(identity)
            if entry is not None and (entry.elements, entry.file.elements) != (elements, size):
                self._drop(identity, "it belongs to a tensor of another size")
                entry = None
            if entry is None:
                entry = await self._make(identity, elements, size)
            self._turn += 1
            entry.used = self._turn
            return entry

    async def _make(self, identity: int, elements: int, size: int) -> _Entry:
        chunks = self.chunks(elements)
        self._drop_unused(ResidualFile.size(size, chunks))
        try:
            # Reserving a gigabyte takes a quarter of a second.
            file = await _finished(
                asyncio.to_thread(
                    ResidualFile.create,
                    identity,
                    elements,
                    size,
                    self._step,
                    self._folder,
                    self._name,
                )
            )
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            raise ReductionError(
                f"no memory for what a lossy wire loses of {elements} elements,"
                f" {ResidualFile.size(size, chunks) >> 20} MiB ({error}); free some in"
                f" {self._folder.path}, or switch it off with feedback=off"
            ) from error
        made = self._entries[identity] = _Entry(file)
        return made

    def chunks(self, elements: int) -> int:
        """Into how many a tensor is cut."""
        return max(1, -(-elements // self._step))

    def _drop_unused(self, needed: int) -> None:
        """Before a new one is made: what was a bucket once, and more where memory is short."""
        by_age = sorted(self._entries.items(), key=lambda item: item[1].used)
        patience = LONG_UNUSED * max(1, len(by_age))
        for identity, entry in by_age:
            age = self._turn - entry.used
            short = len(self._entries) >= MOST_ENTRIES or self._folder.room < needed
            old = age > patience and entry.is_brief
            if not entry.is_lent and (old or (short and age > 2 * len(by_age))):
                self._drop(identity, "nothing has used it for long")

    def _drop(self, identity: int, reason: str) -> None:
        self._entries.pop(identity).file.close()
        self._count_dropped()
        log.warning("what was lost of %016x is dropped: %s", identity, reason)

    def _count_dropped(self) -> None:
        self.dropped += 1
        if self._metrics is not None:
            self._metrics.residuals_dropped.inc()

    # -- checkpoints

    def kept(self, revoked: Collection[int] = ()) -> list[Kept]:
        """All residuals, these identities' as they were before they were reduced last.

        No collective may be under way before `values` has been called.
        """
        found = []
        for identity, entry in self._entries.items():
            lost = entry.revocable if identity in revoked else ()
            counts = enumerate(entry.file.counts)
            kept = tuple(count - (chunk in lost) for chunk, count in counts)
            found.append(Kept(identity, entry.elements, kept, entry.file.elements))
        return found

    def values(self, kept: Kept) -> Iterator[torch.Tensor]:
        """What was lost, in fp32, chunk by chunk; nothing where nothing is fed back."""
        entry = self._entries.get(kept.identity)
        if entry is None or not kept.size:
            return
        for chunk, count in enumerate(kept.counts):
            part = entry.file.version(count)[chunk * self._step : (chunk + 1) * self._step]
            yield part if count else torch.zeros_like(part)

    def forget(self) -> None:
        """Begin anew."""
        for entry in self._entries.values():
            entry.file.close()
        self._entries.clear()

    async def restore(self, kept: Kept) -> Restoring | None:
        """Go on with this residual, whose values then come; None where it does not fit."""
        counts = kept.counts
        fits = len(counts) == self.chunks(kept.elements) and kept.size in (0, kept.elements)
        if not fits or not all(0 <= count < MOST_COUNT for count in counts):
            self._count_dropped()
            return None
        self._entries.pop(kept.identity, None)
        async with self._making:
            entry = await self._make(kept.identity, kept.elements, kept.size)
        return Restoring(entry.file, counts, self._step)

    def close(self) -> None:
        """Unlink all files."""
        self.forget()


async def _finished(making: Coroutine[Any, Any, ResidualFile]) -> ResidualFile:
    """A file once it is made. Who is called off meanwhile leaves none behind: a daemon that
    came later would take it for what was lost.
    """
    task = asyncio.ensure_future(making)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_discard)
        raise


def _discard(task: asyncio.Task[ResidualFile]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


class Restoring:
    """Takes one residual's values as they come; it counts once it is complete."""

    def __init__(self, file: ResidualFile, counts: Sequence[int], step: int) -> None:
        self._file = file
        self._counts = counts
        self._step = step
        self._written = 0
        self._finish()

    @property
    def missing(self) -> int:
        """Elements that have not come."""
        return self._file.elements - self._written

    def write(self, values: torch.Tensor) -> None:
        """The next values, fp32; no more of them than are missing."""
        while len(values):
            chunk, within = divmod(self._written, self._step)
            taken = min(self._step - within, len(values))
            place = slice(self._written, self._written + taken)
            self._file.version(self._counts[chunk])[place].copy_(values[:taken])
            self._written += taken
            values = values[taken:]
        self._finish()

    def _finish(self) -> None:
        if not self.missing:
            for chunk, count in enumerate(self._counts):
                self._file.counts[chunk] = count
