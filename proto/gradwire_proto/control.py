"""The counters in an arena: how far every local rank is, and what each slot holds.

Every chunk of a node has a *ticket*, 0, 1, 2, ...; ticket t uses slot t modulo slots. The chunk
passes along the node's ranks: local rank 0 opens the ticket and puts its part into the slot,
each next rank adds its own. So every counter has one writer, and grows.

A counter is written after what it stands for. x86-64 keeps that order by itself; elsewhere a
fence does, see `_fence`.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_proto.arena import SLOT_BLOCK_BYTES
from gradwire_proto.diary import HANDED_IN, SUBMITTED, TIMES_KEPT, Diary
from gradwire_proto.nonfinite import Finding
from gradwire_proto.semaphore import Semaphore

if TYPE_CHECKING:
    import mmap

    from gradwire_proto.arena import Layout

ABSENT, SHARES, STREAMS = 0, 1, 2
"""A local rank's seat: not taken yet; in this memory; or its tensors come in messages."""

FOREVER = (1 << 63) - 1
"""No limit."""

_WORD = 8
# Words of the node block.
_LIMIT, _FAILURES = 0, 8
# Words of a rank's block, after its semaphore: on cache lines of their own where others poll.
# The diary has those from 45 on.
_SEAT, _RESOLVED = 8, 10
_ADDED = 16
_TAKEN = 24
_BYTES, _ROUNDS, _NANOSECONDS, _BROUGHT = 32, 33, 34, 35
_FENCE = 40
_FIRST_STEP = 44
# Words of a slot's block; the diary has those from 16 on.
_TICKET, _SEQUENCE, _CHUNK, _VOID, _WEIGHT, _SPEC_BYTES = 0, 1, 2, 3, 4, 5
_DONE, _RELEASED = 8, 9
_NONFINITE, _CULPRIT, _ELEMENT = 10, 11, 12
_SPEC = 32 * _WORD

LONGEST_SPEC = SLOT_BLOCK_BYTES - _SPEC

_ORDERED = platform.machine() in ("x86_64", "AMD64")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ticket stands for, as its first rank wrote it."""

    sequence: int
    chunk: int
    spec: bytes
    """Serialised Spec."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a local rank is."""

    submitted: int
    """Collectives handed in."""
    resolved: int
    """Collectives that have a result or have failed, here."""
    added: int
    """Tickets to which the rank has added its part."""
    taken: int
    """Tickets whose result the rank has read."""
    brought: int
    """Collectives to all of whose chunks the rank has added its part."""
    bytes: int
    """Bytes of the tensors that came back."""
    rounds: int
    """Chunks that came back."""
    seconds: float
    """Sum over these of the time from the rank's own part to the result."""
    first_step: int
    """Collectives before this one are of the first training step."""


class Control:
    """Reads and writes the counters of one mapped arena."""

    def __init__(self, memory: mmap.mmap, layout: Layout) -> None:
        self._bytes = memoryview(memory)
        whole = len(self._bytes) // _WORD * _WORD
        self._words = self._bytes[:whole].cast("q")
        self._floats = self._bytes[:whole].cast("d")
        self._slots = layout.slots
        self._node = layout.node_block // _WORD
        self._ranks = [layout.rank_block(rank) // _WORD for rank in range(layout.ranks)]
        self._blocks = [layout.slot_block(slot) // _WORD for slot in range(layout.slots)]
        self._added = [block + _ADDED for block in self._ranks]
        self._taken = [block + _TAKEN for block in self._ranks]
        raw = (ctypes.c_char * len(self._bytes)).from_buffer(memory)
        self._semaphores = [Semaphore(raw, block * _WORD) for block in self._ranks]
        self.diary = Diary(self._words, self._node, self._ranks, self._blocks)
        """When which ticket passed which stage."""
        self._order = Semaphore(raw, self._ranks[0] * _WORD + _FENCE * _WORD)

    def initialise(self) -> None:
        """Once, by the daemon that made the memory."""
        for semaphore in self._semaphores:
            semaphore.initialise()
        self._order.initialise()
        self._words[self._node + _LIMIT] = FOREVER

    def close(self) -> None:
        """Let go of the memory."""
        self._semaphores = []
        del self._order
        for view in (self._words, self._floats, self._bytes):
            view.release()

    # -- waking

    def wake(self, rank: int) -> None:
        """Something has changed for this local rank."""
        self._semaphores[rank].post()

    def wake_all(self) -> None:
        """Something has changed for all local ranks."""
        for semaphore in self._semaphores:
            semaphore.post()

    def wait(self, rank: int, until: float) -> None:
        """Return when something may have changed for this rank; see Semaphore.wait."""
        self._semaphores[rank].wait(until)

    # -- the node's words

    @property
    def limit(self) -> int:
        """Collectives that can complete, now that somebody has left."""
        return self._words[self._node + _LIMIT]

    @limit.setter
    def limit(self, collectives: int) -> None:
        self._words[self._node + _LIMIT] = collectives

    @property
    def failures(self) -> int:
        """Collectives that have failed; raised before the ranks are told."""
        return self._words[self._node + _FAILURES]

    def count_failure(self) -> None:
        """A collective has failed: nobody takes a result before having heard of it."""
        self._words[self._node + _FAILURES] += 1

    # -- a rank's words

    def take_seat(self, rank: int, seat: int) -> None:
        """This is how the rank's tensors come."""
        self._words[self._ranks[rank] + _SEAT] = seat
        self.wake_all()

    def seats(self) -> list[int]:
        """Of all local ranks: ABSENT, SHARES or STREAMS."""
        return [self._words[block + _SEAT] for block in self._ranks]

    def submitted(self, rank: int, collectives: int) -> None:
        """The rank has handed in so many; when, it has said in the diary."""
        self._words[self._ranks[rank] + SUBMITTED] = collectives

    def of_first_step(self, rank: int, collectives: int) -> None:
        """So many are of the first training step. Said before they are handed in."""
        self._words[self._ranks[rank] + _FIRST_STEP] = collectives

    def handed_in(self, rank: int, since: int) -> dict[int, float]:
        """When the rank handed in its collectives of this number and later; the latest only."""
        block, words = self._ranks[rank], self._words
        last = words[block + SUBMITTED]
        self._fence()
        times = {
            number: words[block + HANDED_IN + number % TIMES_KEPT] / 1e9
            for number in range(max(since, last - TIMES_KEPT), last)
        }
        # The rank goes on meanwhile, over the oldest ones; it may be in the midst of one more.
        self._fence()
        kept = words[block + SUBMITTED] + 1 - TIMES_KEPT
        return {number: time for number, time in times.items() if number >= kept}

    def resolved(self, rank: int, collectives: int, size: int) -> None:
        """So many have ended on the rank; the last one has this many bytes."""
        block = self._ranks[rank]
        self._words[block + _RESOLVED] = collectives
        self._words[block + _BYTES] += size

    def brought(self, rank: int, collectives: int) -> None:
        """The rank has added its part to all chunks of so many."""
        self._words[self._ranks[rank] + _BROUGHT] = collectives

    def progress(self, rank: int) -> Progress:
        """How far a rank is."""
        block, words = self._ranks[rank], self._words
        return Progress(
            words[block + SUBMITTED],
            words[block + _RESOLVED],
            words[block + _ADDED],
            words[block + _TAKEN],
            words[block + _BROUGHT],
            words[block + _BYTES],
            words[block + _ROUNDS],
            words[block + _NANOSECONDS] / 1e9,
            words[block + _FIRST_STEP],
        )

    # -- tickets

    def open(self, number: int, sequence: int, chunk: int, spec: bytes) -> None:
        """Local rank 0 begins a ticket; its slot is free."""
        block, words = self._blocks[number % self._slots], self._words
        words[block + _SEQUENCE] = sequence
        words[block + _CHUNK] = chunk
        words[block + _VOID] = 0
        words[block + _NONFINITE] = words[block + _CULPRIT] = 0
        self._floats[block + _WEIGHT] = 0.0
        words[block + _SPEC_BYTES] = len(spec)
        start = block * _WORD + _SPEC
        self._bytes[start : start + len(spec)] = spec
        words[block + _TICKET] = number + 1

    def says(self, number: int, sequence: int, chunk: int, spec: bytes) -> bool:
        """The ticket was opened with just these."""
        block, words = self._blocks[number % self._slots], self._words
        start = block * _WORD + _SPEC
        return (
            words[block + _SEQUENCE] == sequence
            and words[block + _CHUNK] == chunk
            and words[block + _TICKET] == number + 1
            and words[block + _SPEC_BYTES] == len(spec)
            and bytes(self._bytes[start : start + len(spec)]) == spec
        )

    def ticket(self, number: int) -> Ticket:
        """What was opened. Raises ValueError where that is not there."""
        block, words = self._blocks[number % self._slots], self._words
        size = words[block + _SPEC_BYTES]
        if words[block + _TICKET] != number + 1 or not 0 <= size <= LONGEST_SPEC:
            raise ValueError(f"the arena says nothing of ticket {number}")
        start = block * _WORD + _SPEC
        spec = bytes(self._bytes[start : start + size])
        return Ticket(words[block + _SEQUENCE], words[block + _CHUNK], spec)

    def weight(self, number: int, more: float = 0.0) -> float:
        """The weights in a ticket's sum, with more added to them."""
        place = self._blocks[number % self._slots] + _WEIGHT
        if more:
            self._floats[place] += more
        return self._floats[place]

    def note(self, number: int, found: Finding) -> None:
        """A rank has brought something that is not finite. The first rank to do so is kept."""
        block, words = self._blocks[number % self._slots], self._words
        if not words[block + _CULPRIT]:
            words[block + _CULPRIT], words[block + _ELEMENT] = found.rank + 1, found.element

    def noted(self, number: int) -> Finding | None:
        """What a rank of this node has brought; see note."""
        block, words = self._blocks[number % self._slots], self._words
        if not words[block + _CULPRIT]:
            return None
        return Finding(words[block + _CULPRIT] - 1, words[block + _ELEMENT])

    def flag(self, number: int, found: Finding) -> None:
        """The ticket's result is not finite. Said before it is finished."""
        block, words = self._blocks[number % self._slots], self._words
        words[block + _CULPRIT], words[block + _ELEMENT] = found.rank + 1, found.element
        words[block + _NONFINITE] = 1

    def finding(self, number: int) -> Finding | None:
        """Where the ticket's result is not finite; see flag."""
        if not self._words[self._blocks[number % self._slots] + _NONFINITE]:
            return None
        return self.noted(number)

    def spoil(self, number: int) -> None:
        """The ticket's collective has failed; its slot holds no result."""
        self._words[self._blocks[number % self._slots] + _VOID] = 1

    def is_void(self, number: int) -> bool:
        """The ticket has no result."""
        return self._words[self._blocks[number % self._slots] + _VOID] != 0

    def added(self, rank: int) -> int:
        """Tickets that have passed this rank."""
        count = self._words[self._added[rank]]
        self._fence()
        return count

    def add(self, rank: int, tickets: int) -> None:
        """So many tickets have passed this rank."""
        self._fence()
        self._words[self._added[rank]] = tickets

    def taken(self) -> int:
        """Tickets whose result every rank has read."""
        words = self._words
        count = min([words[place] for place in self._taken])
        self._fence()
        return count

    def take(self, rank: int, tickets: int, nanoseconds: int) -> None:
        """The rank has read, or passed over, the results of so many tickets."""
        self._fence()
        block, words = self._ranks[rank], self._words
        if nanoseconds:
            words[block + _ROUNDS] += 1
            words[block + _NANOSECONDS] += nanoseconds
        words[self._taken[rank]] = tickets

    def is_done(self, number: int) -> bool:
        """The daemon has put the ticket's result into its slot, or given it up."""
        done = self._words[self._blocks[number % self._slots] + _DONE] == number + 1
        self._fence()
        return done

    def finish(self, number: int) -> None:
        """The ticket's result is in its slot, or it has none."""
        self._fence()
        self._words[self._blocks[number % self._slots] + _DONE] = number + 1

    def is_released(self, number: int) -> bool:
        """The daemon no longer reads the slot."""
        return self._words[self._blocks[number % self._slots] + _RELEASED] == number + 1

    def release(self, number: int) -> None:
        """The daemon no longer reads the slot."""
        self._words[self._blocks[number % self._slots] + _RELEASED] = number + 1

    def _fence(self) -> None:
        # A release and an acquire on one word: nothing passes both.
        if not _ORDERED:
            self._order.post()
            self._order.wait(0.0)
