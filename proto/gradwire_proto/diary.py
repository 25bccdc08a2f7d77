"""When a ticket passed which stage: kept in the arena, beside the counters (see control.py).

Each rank in turn writes what it did with a ticket, then the daemon, where other nodes have a
part in it; the first rank reads all of that when it has taken the result, and adds it to totals
of its own. Every moment between a ticket's beginning and its end is in just one stage, so the
stages add up (see stages.py). All times are of CLOCK_MONOTONIC, in nanoseconds, which all
processes of a host share.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from gradwire_proto.stages import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gradwire_proto.stages import Stage

DEEDS_KEPT = 512

TIMES_KEPT = 64
"""Of so many of its latest collectives each rank has written when it handed them in."""

# Words of a rank's block.
SUBMITTED, HANDED_IN = 9, 64
_STEPS, _UNDER_WAY, _SINCE, _TOTALS, _STEP, _DEEDS = 45, 46, 47, 48, 58, 59
_DEED = 128
"""The first of the words of the latest deeds."""
_DEED_WORDS = 4
DEED_BYTES = 8 * _DEED_WORDS
_READ_DEED = struct.Struct(f"<{_DEED_WORDS}q")
# Word of the node's block.
_TRACING = 16
# Words of a slot's block.
_SEQUENCE, _CHUNK = 1, 2
_BEGAN, _STAMP = 16, 17
_SPENT = 18
"""The first of one word a stage."""

_PLACES = {stage: place for place, stage in enumerate(STAGES)}
_COPY_IN, _COPY_OUT = _PLACES["copy_in"], _PLACES["copy_out"]
_WAIT_LOCAL, _QUEUE, _LOCAL_SUM = _PLACES["wait_local"], _PLACES["queue"], _PLACES["local_sum"]
_WAIT_PEERS = _PLACES["wait_peers"]


class HandedIn(NamedTuple):
    """When a rank has handed in a collective, and what that rank had waited for until then."""

    at: int
    local: int
    """Nanoseconds without a free slot, since another local rank was late; local rank 0 only."""
    peers: int
    """The same, since another node was."""


class _Hold(NamedTuple):
    """Local rank 0 waits for a slot: since when, and what the ticket in it had spent then."""

    since: int
    told: int
    """Until when it had told of its time."""
    local: int
    peers: int


class Deed(NamedTuple):
    """Something that a rank did with a ticket, while somebody wanted to know."""

    stage: Stage
    sequence: int
    chunk: int
    begun: int
    ended: int


class Totals(NamedTuple):
    """Of one arena's tickets so far."""

    seconds: dict[Stage, float]
    whole: float
    """Seconds from beginning to end, of all tickets together."""


class Pace(NamedTuple):
    """Of one rank so far."""

    steps: int
    """Training steps that it has begun."""
    communicating: float
    """Seconds in which it had a collective under way."""


class Diary:
    """One mapped arena's, seen by any of its processes."""

    def __init__(
        self, words: memoryview[int], node: int, ranks: Sequence[int], slots: Sequence[int]
    ) -> None:
        """`node`, `ranks`, `slots`: the first word of each one's block."""
        self._words = words
        self._node = node
        self._ranks = ranks
        self._slots = slots
        self._hold: _Hold | None = None
        self._held_local = self._held_peers = 0

    # -- a rank hands in

    def hand_in(self, rank: int, collectives: int, now: int, step: int = 0) -> HandedIn:
        """The rank hands in the last of so many, of this training step."""
        block, words = self._ranks[rank], self._words
        words[block + HANDED_IN + (collectives - 1) % TIMES_KEPT] = now
        if not words[block + _SINCE]:
            words[block + _SINCE] = now
        if step > words[block + _STEP]:
            words[block + _STEP] = step
            words[block + _STEPS] += 1
        return HandedIn(now, self._held_local, self._held_peers)

    def rest(self, rank: int, now: int) -> None:
        """The rank has nothing under way."""
        block, words = self._ranks[rank], self._words
        if since := words[block + _SINCE]:
            words[block + _SINCE] = 0
            words[block + _UNDER_WAY] += now - since

    def pace(self, rank: int, now: int) -> Pace:
        """How a rank trains. Never less than said before, but for a moment's confusion where
        it begins or ends something just then.
        """
        block, words = self._ranks[rank], self._words
        since = words[block + _SINCE]
        lately = max(0, now - since) if since else 0
        return Pace(words[block + _STEPS], (words[block + _UNDER_WAY] + lately) / 1e9)

    # -- a ticket passes

    def hold(self, number: int, now: int) -> None:
        """Local rank 0 cannot begin a ticket: the slot is another's still."""
        if self._hold is None:
            block, words = self._slots[number % len(self._slots)], self._words
            spent = block + _SPENT
            local, peers = words[spent + _WAIT_LOCAL], words[spent + _WAIT_PEERS]
            self._hold = _Hold(now, words[block + _STAMP], local, peers)

    def _let_go(self, number: int, now: int) -> None:
        """The slot is free. Whom its ticket waited for meanwhile, so did local rank 0."""
        if self._hold is None:
            return
        hold, self._hold = self._hold, None
        spent = self._slots[number % len(self._slots)] + _SPENT
        # Of what it has told since, this much was before: and first it waited for local ranks.
        early, left = max(0, hold.since - hold.told), max(0, now - hold.since)
        local = self._words[spent + _WAIT_LOCAL] - hold.local
        peers = self._words[spent + _WAIT_PEERS] - hold.peers
        for_local = min(max(0, local - early), left)
        for_peers = min(max(0, peers - max(0, early - local)), left - for_local)
        self._held_local += for_local
        self._held_peers += for_peers

    def open(self, number: int, sequence: int, mine: HandedIn | None, now: int) -> None:
        """Local rank 0 begins a ticket of a collective that it has handed in so; None, where it
        is not the first of that collective.
        """
        self._let_go(number, now)
        block, words = self._slots[number % len(self._slots)], self._words
        spent = block + _SPENT
        for place in range(len(STAGES)):
            words[spent + place] = 0
        began = now
        if mine is not None:
            began = min([mine.at, *self._others(sequence)])
            waited = now - mine.at
            local = min(self._held_local - mine.local, waited)
            peers = min(self._held_peers - mine.peers, waited - local)
            words[spent + _WAIT_LOCAL] = mine.at - began + local
            words[spent + _WAIT_PEERS] = peers
            words[spent + _QUEUE] = waited - local - peers
        words[block + _BEGAN] = began
        words[block + _STAMP] = now

    def _others(self, sequence: int) -> list[int]:
        """When the others have handed it in, where they have; of what is long ago, when they
        handed in the oldest that they have a record of.
        """
        words, times = self._words, []
        for block in self._ranks[1:]:
            submitted = words[block + SUBMITTED]
            if submitted > sequence:
                # One less than are kept: the rank may be about to write over the oldest.
                known = max(sequence, submitted - TIMES_KEPT + 1)
                if time := words[block + HANDED_IN + known % TIMES_KEPT]:
                    times.append(time)
        return times

    def add(self, number: int, rank: int, handed_in: int, begun: int, ended: int) -> None:
        """A rank has added its part, between these times. Said before it passes it on."""
        block, words = self._slots[number % len(self._slots)], self._words
        spent, passed = block + _SPENT, words[block + _STAMP]
        if rank:
            ready = min(max(passed, handed_in), begun)
            words[spent + _WAIT_LOCAL] += ready - passed
            words[spent + _QUEUE] += begun - ready
            words[spent + _LOCAL_SUM] += ended - begun
        else:
            words[spent + _COPY_IN] = ended - passed
        words[block + _STAMP] = ended
        if words[self._node + _TRACING]:
            self._note(rank, number, _LOCAL_SUM if rank else _COPY_IN, begun, ended)

    def passed(self, number: int) -> int:
        """When the last rank's part was there, or the daemon's."""
        return self._words[self._slots[number % len(self._slots)] + _STAMP]

    def exchange(self, number: int, spent: Mapping[Stage, int], ended: int) -> None:
        """The daemon has the result: how it spent the time since `passed`."""
        block, words = self._slots[number % len(self._slots)], self._words
        for stage, nanoseconds in spent.items():
            words[block + _SPENT + _PLACES[stage]] += nanoseconds
        words[block + _STAMP] = ended

    def take(self, number: int, rank: int, begun: int, now: int) -> None:
        """A rank has read the result since `begun`. With local rank 0 the ticket ends."""
        if self._words[self._node + _TRACING]:
            self._note(rank, number, _COPY_OUT, begun, now)
        if rank:
            return
        block, words = self._slots[number % len(self._slots)], self._words
        spent, total = block + _SPENT, self._ranks[0] + _TOTALS
        for stage in range(len(STAGES)):
            if nanoseconds := words[spent + stage]:
                words[total + stage] += nanoseconds
        # The rank may have been busy with others, or wait for earlier chunks.
        ready = max(words[block + _STAMP], min(begun, now))
        words[total + _QUEUE] += ready - words[block + _STAMP]
        words[total + _COPY_OUT] += now - ready
        words[total + len(STAGES)] += now - words[block + _BEGAN]

    def totals(self) -> Totals:
        """Of all tickets that are at their end."""
        first = self._ranks[0] + _TOTALS
        seconds = {
            stage: self._words[first + place] / 1e9 for place, stage in enumerate(STAGES)
        }
        return Totals(seconds, self._words[first + len(STAGES)] / 1e9)

    # -- what ranks do, one by one

    @property
    def tracing(self) -> bool:
        """Somebody wants to know."""
        return self._words[self._node + _TRACING] != 0

    @tracing.setter
    def tracing(self, on: bool) -> None:
        self._words[self._node + _TRACING] = on

    def _note(self, rank: int, number: int, stage: int, begun: int, ended: int) -> None:
        block, words = self._ranks[rank], self._words
        slot, count = self._slots[number % len(self._slots)], words[block + _DEEDS]
        place = block + _DEED + count % DEEDS_KEPT * _DEED_WORDS
        words[place] = words[slot + _CHUNK] * len(STAGES) + stage
        words[place + 1] = words[slot + _SEQUENCE]
        words[place + 2], words[place + 3] = begun, ended
        words[block + _DEEDS] = count + 1

    def deeds(self, rank: int, since: int) -> tuple[int, bytes]:
        """How many a rank has noted so far, and those after so many, but for the oldest where
        there were too many; see read_deeds.
        """
        block, words = self._ranks[rank], self._words
        count = words[block + _DEEDS]
        ring = words[block + _DEED : block + _DEED + DEEDS_KEPT * _DEED_WORDS].tobytes()
        # The rank goes on meanwhile, over the oldest, and may be in the midst of one more.
        first = max(since, words[block + _DEEDS] - DEEDS_KEPT + 1)
        if first >= count:
            return count, b""
        start, stop = (each % DEEDS_KEPT * DEED_BYTES for each in (first, count))
        whole = ring[start:stop] if start < stop else ring[start:] + ring[:stop]
        return count, whole


def read_deeds(words: bytes) -> Iterator[Deed]:
    """What Diary.deeds gives. Raises ValueError where it makes no sense."""
    if len(words) % DEED_BYTES:
        raise ValueError(f"expected deeds of {DEED_BYTES} bytes, got {len(words)}")
    for kind, sequence, begun, ended in _READ_DEED.iter_unpack(words):
        chunk, stage = divmod(kind, len(STAGES))
        yield Deed(STAGES[stage], sequence, chunk, begun, ended)
