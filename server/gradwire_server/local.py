"""How a node's own ranks hand in a chunk and get it back: in messages, or in the arena.

A round is carried out alike for both (execution.py); what differs is where its sum lies, how
the local part gets there, and how the ranks hear of the result.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gradwire_proto.nonfinite import Finding
    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.accounts import Accounts
    from gradwire_server.chain import Chain
    from gradwire_server.execution import Arrived
    from gradwire_server.kernels import ChunkSum
    from gradwire_server.round import Key, Round
    from gradwire_server.stopwatch import Stopwatch


class Place(Protocol):
    """Memory for one chunk."""

    def total(self, size: int) -> memoryview:
        """The first bytes of the sum."""
        ...

    def result(self, size: int) -> memoryview:
        """The first bytes of the result, where that is of another type than the sum."""
        ...


class Local(Protocol):
    """The local ranks' side of one round. In order: take, add, then publish or not; release."""

    begun: int
    """When the last local part was there: nanoseconds of CLOCK_MONOTONIC."""

    @property
    def parts(self) -> int:
        """Ranks' chunks that `add` goes through."""
        ...

    async def take(self) -> Place:
        """Memory for the chunk, once there is some."""
        ...

    def add(self, total: ChunkSum) -> None:
        """Put the local ranks' sum into the total."""
        ...

    def publish(self, total: ChunkSum, watch: Stopwatch) -> None:
        """Hand the result to the local ranks, and write down where the time went."""
        ...

    def release(self) -> None:
        """Nobody here reads the memory any more; where nothing was published, there is none."""
        ...


class PrivateSlot:
    """See Place; in the daemon's own memory, allocated when first used."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._memory = memoryview(b"")

    def total(self, size: int) -> memoryview:
        """See Place."""
        return self._whole()[:size]

    def result(self, size: int) -> memoryview:
        """See Place."""
        return self._whole()[self._chunk_bytes :][:size]

    def _whole(self) -> memoryview:
        if not self._memory:
            self._memory = memoryview(bytearray(self._chunk_bytes + self._chunk_bytes // 2))
        return self._memory


class PrivateSlots:
    """Memory for a bounded number of rounds at a time."""

    def __init__(self, slots: int, chunk_bytes: int) -> None:
        self.count = slots
        self._free = deque(PrivateSlot(chunk_bytes) for _ in range(slots))
        self._line: deque[asyncio.Future[PrivateSlot]] = deque()

    def ask(self) -> asyncio.Future[PrivateSlot]:
        """A slot, as soon as there is one: first come, first served.

        A round's slot may be kept until all before it have settled: these must have theirs.
        """
        asked: asyncio.Future[PrivateSlot] = asyncio.get_running_loop().create_future()
        self._line.append(asked)
        self._hand_out()
        return asked

    def give_back(self, asked: asyncio.Future[PrivateSlot]) -> None:
        """The slot is free again, or not needed any more."""
        if not asked.cancel() and not asked.cancelled():
            self._free.append(asked.result())
            self._hand_out()

    def _hand_out(self) -> None:
        while self._line and (self._free or self._line[0].cancelled()):
            asked = self._line.popleft()
            if not asked.cancelled():
                asked.set_result(self._free.popleft())


class Ranks(Protocol):
    """The local ranks, as they are spoken to."""

    def result(
        self, rank: int, key: Key, result: memoryview, found: Finding | None = None
    ) -> None:
        """The chunk of a rank that gets it in a message is reduced,
        and not finite if so found.

        The memory is valid during the call.
        """
        ...

    def failed(self, rank: int, sequence: int, failure: aggregator_pb2.Failure) -> None:
        """The rank's collective, or its job, has failed."""
        ...


class Streamed:
    """See Local; each rank's chunk came in a message, and the result goes out in one."""

    def __init__(
        self,
        round_: Round[Arrived],
        slots: PrivateSlots,
        ranks: list[int],
        to: Ranks,
        accounts: Accounts,
    ) -> None:
        self.begun = time.monotonic_ns()
        self._accounts = accounts
        self._round = round_
        self._slots = slots
        self._ranks = ranks
        self._to = to
        # Now, since rounds begin in order; what comes before `take` may pass other rounds by.
        self._slot: asyncio.Future[PrivateSlot] | None = slots.ask()

    @property
    def parts(self) -> int:
        """See Local."""
        return len(self._round.contributions)

    async def take(self) -> Place:
        """See Local."""
        assert self._slot is not None, "a round is released at its end"  # noqa: S101
        # The round that waits may be called off: its place in the line goes with `release`.
        return await asyncio.shield(self._slot)

    def add(self, total: ChunkSum) -> None:
        """See Local; in the order of the ranks."""
        everybody = sorted(self._round.contributions.items())
        brought = {rank: each for rank, each in everybody if not each.is_blank}
        payloads = [each.payload for each in brought.values() if each.payload is not None]
        total.add_local(payloads, [each.weight for each in brought.values()], list(brought))

    def publish(self, total: ChunkSum, watch: Stopwatch) -> None:
        """See Local."""
        self._accounts.streamed(self._round.begun, watch)
        for rank in self._ranks:
            self._to.result(rank, self._round.key, total.whole(), total.finding)

    def release(self) -> None:
        """See Local."""
        if self._slot is not None:
            self._slots.give_back(self._slot)
            self._slot = None


class Chained:
    """See Local; the ranks have added by themselves, and read the result where it lies."""

    parts = 0

    def __init__(self, chain: Chain, ticket: int) -> None:
        self.begun = chain.passed(ticket)
        self._chain = chain
        self._ticket = ticket
        self._published = False

    async def take(self) -> Place:
        """See Local."""
        return self._chain.place(self._ticket)

    def add(self, total: ChunkSum) -> None:
        """See Local."""
        total.adopt(self._chain.weight(self._ticket), self._chain.noted(self._ticket))

    def publish(self, total: ChunkSum, watch: Stopwatch) -> None:
        """See Local."""
        self._published = True
        self._chain.spent(self._ticket, watch)
        self._chain.publish(self._ticket, total.finding)

    def release(self) -> None:
        """See Local."""
        if not self._published:
            self._chain.spoil(self._ticket)
        self._chain.release(self._ticket)
