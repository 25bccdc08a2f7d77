"""Carries out one generation's rounds on one node: the only place where a schedule meets I/O.

A round begins when all local ranks have brought their chunk. The engine sums these, then does
what the schedule says: sends shares, adds and stores what arrives. Rounds run side by side,
each in a task of its own; what fails, fails one collective (mismatch, lateness) or the job
(somebody is gone).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from gradwire_proto.v1 import aggregator_pb2, peer_pb2
from gradwire_server.errors import (
    LostError,
    ProtocolError,
    ReductionError,
    from_failure,
)
from gradwire_server.execution import Arrived, Execution, Memory, Workplace
from gradwire_server.lateness import Lateness
from gradwire_server.results import ResultSlots
from gradwire_server.round import Contribution, Key, Rounds
from gradwire_server.transport.base import Abort, Left, Message, Part, Transport
from gradwire_server.transport.stripes import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from gradwire_server.group import Group
    from gradwire_server.kernels import Kernels
    from gradwire_server.metrics import Metrics

log = logging.getLogger(__name__)

MOST_OPEN_ROUNDS = 1024
"""More than all slots of all ranks: a peer that begins more would only fill the memory."""

CLOSE_SECONDS = 2.0
"""How long a peer that takes nothing may hold up the end of a job."""

_SENDER = -1
"""Reads a result like a rank, until all that others need of it has been sent."""


class Ranks(Protocol):
    """The local ranks, as the engine sees them."""

    def result(self, rank: int, key: Key, slot: int, result: memoryview) -> None:
        """The rank's chunk is reduced."""
        ...

    def failed(self, rank: int, sequence: int, failure: aggregator_pb2.Failure) -> None:
        """The rank's collective, or its job, has failed."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What a job has agreed on."""

    chunk_bytes: int
    slots: int
    timeout_seconds: float
    warn_seconds: float
    schedule: peer_pb2.Schedule | None = None
    """None: chosen for each chunk."""
    connections: int = AUTO
    """To each other node; as this node wants it where it dials."""


class Engine:
    """One generation on one node. All methods are called on the event loop."""

    def __init__(  # noqa: PLR0913 - what a generation is made of; Job puts it together
        self,
        group: Group,
        terms: Terms,
        ranks: Ranks,
        memory: Memory,
        kernels: Kernels,
        metrics: Metrics,
    ) -> None:
        self.group = group
        self.done = 0
        self.failed_count = 0
        self._terms = terms
        self._ranks = ranks
        self._metrics = metrics
        self._lateness = Lateness(group, metrics, terms.timeout_seconds, terms.warn_seconds)
        self._workplace = Workplace(group, terms.schedule, memory, kernels)
        self._transport: Transport | None = None
        self._rounds: Rounds[Arrived] = Rounds(group.local_ranks)
        self._results = ResultSlots(terms.slots)
        self._result_freed = asyncio.Event()
        self._running: dict[Key, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    def connect(self, transport: Transport) -> None:
        """Use these links. Before any round, unless the node is alone."""
        self._transport = transport

    def sequences(self, rank: int) -> int:
        """Collectives that a local rank has brought all of."""
        return self._rounds.sequences(rank)

    @property
    def open_rounds(self) -> int:
        """Rounds without a result."""
        return len(self._rounds.open)

    # -- from the local ranks

    def contribute(self, rank: int, key: Key, contribution: Contribution) -> None:
        """A local rank brings a chunk. Failures go to the ranks, nothing is raised."""
        if (failure := self.group.failure) is not None:
            self._tell(rank, key.sequence, failure, aggregator_pb2.Failure.SCOPE_JOB)
            return
        try:
            size = self._admit(rank, key, contribution)
        except ReductionError as error:
            self.fail(error)
            return
        if (failure := self._rounds.failure(key.sequence)) is not None:
            self._tell(rank, key.sequence, failure, aggregator_pb2.Failure.SCOPE_ROUND)
            return
        round_ = self._rounds.get(key, self._clock())
        assert round_ is not None, "a round can't be over before its ranks came"  # noqa: S101
        try:
            round_.contribute(rank, contribution)
        except ReductionError as error:
            self.fail_round(key.sequence, error)
            return
        self._metrics.bytes_in.inc(size)
        if not round_.missing:
            execution = Execution(round_, size, self._workplace, self._transport)
            self._running[key] = execution
            execution.task = self._spawn(self._carry_out(execution))

    def _admit(self, rank: int, key: Key, contribution: Contribution) -> int:
        """Bytes of the chunk; raises where the rank breaks the rules or others are gone."""
        size, final = contribution.extent(rank, key.chunk, self._terms.chunk_bytes)
        self._rounds.advance(rank, key, final=final)
        self.group.check(key.sequence)
        self._place(rank, contribution, size)
        return size

    def _place(self, rank: int, contribution: Contribution, size: int) -> None:
        mine = [round_.contributions.get(rank) for round_ in self._rounds.open]
        in_flight = [one for one in mine if one is not None]
        if len(in_flight) >= self._terms.slots:
            raise ProtocolError(
                f"rank {rank} has more than {self._terms.slots} chunks in flight"
            )
        if contribution.payload is None and any(
            one.payload is None and one.slot == contribution.slot for one in in_flight
        ):
            raise ProtocolError(f"rank {rank} brought slot {contribution.slot} twice at a time")
        if contribution.payload is None:
            self._workplace.memory.contribution(rank, contribution.slot, size)
            if self._results.reuse(rank, contribution.slot):
                self._result_freed.set()
        elif contribution.payload.nbytes != size:
            got = contribution.payload.nbytes
            raise ProtocolError(f"rank {rank} brought a chunk of {got} bytes, expected {size}")

    def leave(self, rank: int) -> None:
        """A local rank leaves in good order."""
        sequences = self._rounds.sequences(rank)
        self._broadcast(Left(rank, sequences))
        self._departed(rank, sequences)
        self.forget(rank)

    def forget(self, rank: int) -> None:
        """A local rank is gone, and reads no more results."""
        self._results.forget(rank)
        self._result_freed.set()

    def _departed(self, rank: int, sequences: int) -> None:
        self.group.depart(rank, sequences)
        for round_ in self._rounds.open:
            try:
                self.group.check(round_.key.sequence)
            except LostError as error:
                self.fail(error)

    # -- from the other nodes

    def receive(self, source: int, message: Message) -> None:
        """See transport.base.Receiver."""
        match message:
            case Part():
                self._receive_part(source, message)
            case Abort(sequence=None, failure=failure):
                self.fail(from_failure(failure), tell_peers=False)
            case Abort(sequence=sequence, failure=failure):
                assert sequence is not None, "matched above"  # noqa: S101
                self.fail_round(sequence, from_failure(failure), tell_peers=False)
            case Left(rank=rank, sequences=sequences):
                self._receive_left(source, rank, sequences)
            case _:
                assert_never(message)

    def _receive_left(self, source: int, rank: int, sequences: int) -> None:
        if rank not in self.group.picture.nodes[source].ranks:
            self.lost(
                source, f"it broke the rules: rank {rank}, which it says left, is not its"
            )
            return
        self._departed(rank, sequences)

    def lost(self, source: int, reason: str) -> None:
        """See transport.base.Receiver."""
        node = self.group.picture.describe(source)
        self.fail(LostError(f"the daemon of {node} is lost: {reason}"))

    def _receive_part(self, source: int, part: Part) -> None:
        if self.group.failure is not None:
            return
        round_ = self._rounds.get(part.key, self._clock())
        if round_ is None:
            self._metrics.errors.labels(kind="stale_frame").inc()
            return
        if len(round_.arrived) >= 2 * len(self.group.picture.nodes):
            self.lost(source, f"it broke the rules: it sent more to {round_} than there is")
            return
        try:
            round_.arrive(self.group.picture.describe(source), part.spec, (source, part))
        except ReductionError as error:
            self.fail_round(part.key.sequence, error)
            return
        if (execution := self._running.get(part.key)) is not None:
            execution.wake()
        elif self.open_rounds > MOST_OPEN_ROUNDS:
            self.lost(source, f"it broke the rules: it began over {MOST_OPEN_ROUNDS} rounds")

    # -- one round

    async def _carry_out(self, execution: Execution) -> None:
        key, began = execution.round.key, self._clock()
        slot = await self._take_result()
        published = False
        self._workplace.kernels.rounds += 1
        try:
            await execution.reduce(self._workplace.memory.result(slot, execution.size))
            self._publish(execution, slot)
            published = True
            await execution.sent()
        except ReductionError as error:
            self.fail_round(key.sequence, error)
        finally:
            self._workplace.kernels.rounds -= 1
            self._running.pop(key, None)
            self._free(slot, published)
        if published:
            self.done += 1
            self._metrics.round_done(execution.name, self._clock() - began)

    async def _take_result(self) -> int:
        while (slot := self._results.take()) is None:
            self._result_freed.clear()
            await self._result_freed.wait()
        return slot

    def _free(self, slot: int, published: bool) -> None:
        if published:
            self._results.reuse(_SENDER, slot)
        else:
            self._results.discard(slot)
        self._result_freed.set()

    def _publish(self, execution: Execution, slot: int) -> None:
        round_ = execution.round
        self._rounds.close(round_.key)
        result = self._workplace.memory.result(slot, execution.size)
        present = [rank for rank in self.group.local_ranks if rank in self.group.members]
        for rank in present:
            self._ranks.result(rank, round_.key, slot, result)
        readers = {
            rank: round_.contributions[rank].slot
            for rank in present
            if round_.contributions[rank].payload is None
        }
        self._results.publish(slot, {_SENDER: slot, **readers})
        self._metrics.bytes_out.inc(execution.size * len(present))

    # -- failure

    def fail_round(
        self, sequence: int, error: ReductionError, *, tell_peers: bool = True
    ) -> None:
        """One collective has failed; the ranks can go on with the next."""
        dropped = self._rounds.fail(sequence, error)
        if dropped is None or self.group.failure is not None:
            return
        log.warning("generation %s: %s", self.group.picture.generation[:8], error)
        self._metrics.errors.labels(kind=type(error).__name__).inc()
        self.failed_count += 1
        self._cancel(round_.key for round_ in dropped)
        if tell_peers:
            failure = error.failure(aggregator_pb2.Failure.SCOPE_ROUND)
            self._broadcast(Abort(sequence, failure))
        for rank in self._rounds.begun(sequence):
            self._tell(rank, sequence, error, aggregator_pb2.Failure.SCOPE_ROUND)

    def fail(self, error: ReductionError, *, tell_peers: bool = True) -> None:
        """The job has failed; every open and later collective fails alike."""
        if not self.group.fail(error):
            return
        log.error("generation %s is over: %s", self.group.picture.generation[:8], error)
        self._metrics.errors.labels(kind=type(error).__name__).inc()
        self._cancel(list(self._running))
        self._rounds.clear()
        if tell_peers:
            self._broadcast(Abort(None, error.failure(aggregator_pb2.Failure.SCOPE_JOB)))
        for rank in self.group.local_ranks:
            self._tell(rank, 0, error, aggregator_pb2.Failure.SCOPE_JOB)

    def _tell(
        self,
        rank: int,
        sequence: int,
        error: ReductionError,
        scope: aggregator_pb2.Failure.Scope,
    ) -> None:
        self._ranks.failed(rank, sequence, error.failure(scope))

    def _cancel(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if (execution := self._running.pop(key, None)) is not None:
                execution.cancel()

    def _broadcast(self, message: Message) -> None:
        if self._transport is not None:
            for peer in self.group.peers:
                self._spawn(self._transport.send(peer, message))

    # -- time

    async def watch(self) -> None:
        """Name who is late, and fail what waits too long. Runs until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self._terms.warn_seconds / 4))
            for sequence, error in self._lateness.look(self._rounds.open, self._clock()):
                self.fail_round(sequence, error)

    # -- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a fault of this daemon's own", exc_info=error)
            self.fail(ProtocolError(f"the daemon made a mistake of its own: {error!r}"))

    async def close(self) -> None:
        """End all rounds; returns when nothing of this engine runs any more."""
        self._lateness.close()
        self._cancel(list(self._running))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
