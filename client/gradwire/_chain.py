"""The short way through a node: its ranks add up their tensors by themselves, in the arena.

Chunks pass from local rank to local rank, as in a pipeline: the first puts its part into a
slot, each next one adds its own from where its tensor lies, and all copy the result out. A
tensor is read once and written once. Several chunks are under way at a time, so that all ranks
have something to do. The daemon is rung for a chunk that other nodes have a part in; without
other nodes the last rank finishes it, and the daemon only looks on.

What is gathered is not added: each rank copies what it brings of a chunk into the slot, and the
first that brings anything clears the rest. Nobody touches what is not his to bring or to take.

A collective that failed is passed over: its tickets go along the chain, but nobody adds, and
what has been added is not read. See gradwire_proto.control for the counters.
"""

from __future__ import annotations

import time
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from gradwire._errors import LostError
from gradwire._plan import Plans, essence
from gradwire._salvage import salvage
from gradwire._shared_memory import from_now
from gradwire._summing import Summing, Work
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import tensor_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradwire._channel import Doorbell
    from gradwire._collective import Collective
    from gradwire._order import Order
    from gradwire._results import Saved
    from gradwire._shared_memory import Arena
    from gradwire_proto.chunks import Cut
    from gradwire_proto.control import Ticket


class _Failed(Enum):
    """A ticket is to be passed over."""

    FAILED = 0


_FAILED = _Failed.FAILED

_Passed: TypeAlias = "tuple[Work | None, int, int]"
"""A ticket that has passed this rank and whose result is to be read: the work, None where it
had failed; the chunk; and the time, in nanoseconds."""


class Chain:
    """See _carrier.Carrier."""

    path = "shared_memory"
    told_early = True

    def __init__(
        self,
        arena: Arena,
        doorbell: Doorbell,
        world_size: int,
        *,
        alone: bool,
        ranks: Sequence[int] = (),
    ) -> None:
        """`ranks`: those of this node, in order; their numbers in it if not given."""
        self.daemon = doorbell.daemon
        self._arena = arena
        self._control = arena.control
        self._diary = arena.control.diary
        self._doorbell = doorbell
        self._alone = alone
        self._rank = arena.local_rank
        self._number = ranks[self._rank] if ranks else self._rank
        self._last = arena.layout.ranks - 1
        self._summing = Summing(arena, self._number, self._tell_weightless, alone=alone)
        self._slots = arena.layout.slots
        self._plans = Plans(arena.layout, world_size, alone=alone)
        self._queue: deque[Work] = deque()
        self._passed: deque[_Passed] = deque()
        self._handed_in = 0
        self._added = 0
        self._taken = 0
        """Tickets that all ranks had read when this one last looked."""
        self._failed: set[int] = set()
        self._failures = 0

    # -- see Carrier

    def put(self, collective: Collective) -> None:
        """See Carrier."""
        sequence = collective.sequence
        order = collective.order
        plan, address = self._plans.of(order.described), order.flat.data_ptr()
        row, first = order.target
        target = row.data_ptr() - first * row.itemsize
        step = order.origin.step if order.origin is not None else 0
        mine = self._diary.hand_in(self._rank, sequence + 1, time.monotonic_ns(), step)
        work = Work(collective, sequence, plan, address, target, mine, collective.taken)
        self._queue.append(work)
        if order.described.spec.first_step:
            self._control.of_first_step(self._rank, sequence + 1)
        self._control.submitted(self._rank, sequence + 1)
        self._handed_in = sequence + 1
        if sequence >= self._control.limit:
            self._ring(pb.Ring(beyond=sequence))

    def skip(self, sequence: int) -> None:
        """See Carrier."""
        self._diary.hand_in(self._rank, sequence + 1, time.monotonic_ns())
        self._control.submitted(self._rank, sequence + 1)
        self._handed_in = sequence + 1

    def advance(self) -> Collective | bool:
        """See Carrier."""
        if self._add_own():
            return True
        return self._take()

    def wait(self, seconds: float) -> None:
        """See Carrier."""
        self._control.wait(self._rank, from_now(seconds))

    def wake(self) -> None:
        """See Carrier."""
        self._control.wake(self._rank)

    def drop(self, sequence: int) -> None:
        """See Carrier."""
        self._failed.add(sequence)
        self._failures += 1
        for work in self._queue:
            if work.sequence == sequence:
                self._queue.remove(work)
                break
        for passed, _, _ in self._passed:
            if passed is not None and passed.sequence == sequence:
                passed.failed = True

    def begin_at(self, sequence: int) -> None:
        """See Carrier."""
        self._handed_in = sequence
        self._control.submitted(self._rank, sequence)
        self._control.brought(self._rank, sequence)
        self._control.resolved(self._rank, sequence, 0)

    def cut_of(self, order: Order) -> Cut:
        """See Carrier."""
        return self._plans.of(order.described).cut

    def drain(self) -> Iterator[Collective]:
        """See Carrier."""
        while self._passed:
            number = self._added - len(self._passed)
            work = self._passed[0][0]
            void = work is None or work.failed
            if not void and (not self._is_done(number) or self._control.is_void(number)):
                return
            done = self._take_oldest(number)
            if not isinstance(done, bool):
                yield done

    def saved(self) -> dict[tuple[int, int], Saved]:
        """See Carrier."""
        taken = self._added - len(self._passed)
        return salvage(self._arena, self._plans, range(max(0, taken - self._slots), taken))

    def resolved(self, collectives: int, size: int) -> None:
        """See Carrier."""
        self._control.resolved(self._rank, collectives, size)
        if collectives == self._handed_in:
            self._diary.rest(self._rank, time.monotonic_ns())

    def receive(self) -> pb.ReduceResponse:
        """See Carrier. Only failures come."""
        return self._doorbell.receive()

    def hang_up(self) -> None:
        """See Carrier."""
        self._doorbell.close()

    def close(self, *, orphaned: bool) -> None:
        """See Carrier."""
        self._queue.clear()
        self._passed.clear()
        self._arena.close(orphaned=orphaned)

    # -- a chunk passes

    def _add_own(self) -> bool:
        """Add this rank's part to the next ticket, or pass it over; False if none is here."""
        number = self._added
        work = self._open(number) if self._rank == 0 else self._follow(number)
        if work is None:
            return False
        if work is _FAILED:
            self._control.spoil(number)
            self._pass_on(None, 0)
            return True
        chunk, begun = work.added, time.monotonic_ns()
        if work.plan.gathers:
            self._summing.bring(number, work, chunk)
        else:
            self._summing.put(number, work, chunk)
        ended = time.monotonic_ns()
        self._diary.add(number, self._rank, work.handed_in.at, begun, ended)
        work.added = chunk + 1
        if work.added == work.plan.chunks:
            self._queue.popleft()
            self._control.brought(self._rank, work.sequence + 1)
        self._pass_on(work, chunk, ended)
        return True

    def _open(self, number: int) -> Work | None:
        """What the first rank begins, once there is a free slot."""
        if not self._queue:
            return None
        if not self._is_free(number):
            self._diary.hold(number, time.monotonic_ns())
            return None
        work = self._queue[0]
        written = work.collective.order.described.written
        self._control.open(number, work.sequence, work.added, written)
        mine = None if work.added else work.handed_in
        self._diary.open(number, work.sequence, mine, time.monotonic_ns())
        return work

    def _is_free(self, number: int) -> bool:
        before = number - self._slots
        if self._taken <= before:
            self._taken = self._control.taken()
            if self._taken <= before:
                return False
        if before < 0:
            return True
        return self._alone or self._control.is_released(before)

    def _follow(self, number: int) -> Work | _Failed | None:
        """What the rank before this one has passed on, if this one can go on with it."""
        if self._control.added(self._rank - 1) <= number:
            return None
        work = self._queue[0] if self._queue else None
        if work is not None and not work.disagreed:
            written = work.collective.order.described.written
            if self._control.says(number, work.sequence, work.added, written):
                return work
        return self._look_closer(number, work)

    def _look_closer(self, number: int, work: Work | None) -> Work | _Failed | None:
        """The ticket is not simply what this rank has next."""
        ticket = self._control.ticket(number)
        if ticket.sequence in self._failed:
            return _FAILED
        if work is None or work.disagreed or work.sequence < ticket.sequence:
            # Not handed in yet; or this rank has yet to hear that its own has failed.
            return None
        if (ticket.sequence, ticket.chunk) != (work.sequence, work.added):
            raise LostError(
                f"this rank is at chunk {work.added} of collective {work.sequence},"
                f" the rank before it at chunk {ticket.chunk} of {ticket.sequence}"
            )
        work.disagreed = not self._agree(ticket, work)
        return None if work.disagreed else work

    def _agree(self, ticket: Ticket, work: Work) -> bool:
        mine = work.collective.order.described.spec
        theirs = tensor_pb2.Spec.FromString(ticket.spec)
        if essence(mine) == essence(theirs):
            return True
        disagreement = pb.Disagreement(sequence=ticket.sequence, mine=mine, theirs=theirs)
        self._ring(pb.Ring(disagreement=disagreement))
        return False

    def _pass_on(self, work: Work | None, chunk: int, since: int = 0) -> None:
        self._passed.append((work, chunk, since))
        self._added += 1
        self._control.add(self._rank, self._added)
        if self._rank < self._last:
            self._control.wake(self._rank + 1)
        elif self._alone:
            for rank in range(self._last):
                self._control.wake(rank)
        else:
            self._ring(pb.Ring(ready=self._added))

    def _tell_weightless(self, sequence: int) -> None:
        self._ring(pb.Ring(weightless=sequence))

    def _ring(self, ring: pb.Ring) -> None:
        try:
            self._doorbell.ring(ring)
        except LostError:
            # Who reads the doorbell learns why: the daemon's last words may lie unread.
            return

    # -- a result is read

    def _take(self) -> Collective | bool:
        """Read the oldest result if it is there; the collective, if that completes it."""
        if not self._passed:
            return False
        number = self._added - len(self._passed)
        if not self._is_done(number) or self._control.failures != self._failures:
            # A failure that this rank has not heard of yet may be of this very collective.
            return False
        work = self._passed[0][0]
        void = work is None or work.failed
        if not void and self._control.is_void(number):
            return False
        return self._take_oldest(number)

    def _take_oldest(self, number: int) -> Collective | bool:
        work, chunk, since = self._passed.popleft()
        void = work is None or work.failed
        nanoseconds = 0
        if work is not None and not void:
            if (found := self._control.finding(number)) is not None:
                start, stop = work.plan.cut.range(chunk)
                work.collective.hear(found, start, stop, self._number)
            begun = time.monotonic_ns()
            self._summing.take(number, work, chunk)
            now = time.monotonic_ns()
            nanoseconds = now - since
            self._diary.take(number, self._rank, begun, now)
            work.collective.taken += 1
        self._control.take(self._rank, number + 1, nanoseconds)
        if self._rank and self._control.added(0) - number >= self._slots:
            self._control.wake(0)
        if work is None or void or work.collective.taken < work.plan.chunks:
            return True
        return work.collective

    def _is_done(self, number: int) -> bool:
        if self._alone:
            return self._control.added(self._last) > number
        return self._control.is_done(number)
