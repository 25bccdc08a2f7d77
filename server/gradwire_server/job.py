"""One generation of a job on this daemon: its seats, its memory, its links, its engine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from functools import partial
from typing import TYPE_CHECKING

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server import obituary
from gradwire_server.chain import Chain
from gradwire_server.engine import Engine
from gradwire_server.errors import LostError, ProtocolError, ReductionError, RefusedError
from gradwire_server.group import Group, Member, Picture
from gradwire_server.office import Office, Tray
from gradwire_server.seat import Carrier, Seat
from gradwire_server.transport.base import Left, Message
from gradwire_server.transport.grpc import GrpcTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_proto.nonfinite import Finding
    from gradwire_server.kernels import Kernels
    from gradwire_server.metrics import Metrics
    from gradwire_server.round import Key
    from gradwire_server.shared_memory import Arena
    from gradwire_server.terms import Terms
    from gradwire_server.transport.precedence import Precedence

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
"""A rank that has joined opens its stream within this time, or is lost."""

COLLECT_SECONDS = 0.3


class Job:
    """Admits ranks, hands their chunks to the engine, and ends when the last one is gone."""

    def __init__(  # noqa: PLR0913 - what a job is made of; daemon puts it together
        self,
        group: Group,
        terms: Terms,
        arena: Arena | None,
        kernels: Kernels,
        metrics: Metrics,
        precedence: Precedence,
    ) -> None:
        self.group = group
        self.terms = terms
        self.arena = arena
        self._chain = (
            None if arena is None else Chain(arena, group.local_ranks, alone=not group.peers)
        )
        standing = precedence.standing(urgent=terms.urgent)
        self.engine = Engine(group, terms, self, self._chain, kernels, metrics, standing)
        self._office = Office(group, terms.chunk_bytes)
        self.transport = GrpcTransport(
            group,
            terms.chunk_bytes,
            self,
            metrics,
            terms.connections,
            standing,
        )
        self.engine.connect(self.transport)
        self._office.connect(self.transport)
        self.transport.dial()
        self.ended = asyncio.Event()
        self._metrics = metrics
        self._seats: dict[int, Seat] = {}
        self._watch = asyncio.create_task(self.engine.watch())
        self._watch.add_done_callback(self._watched)
        metrics.jobs.inc()

    def _watched(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            log.error("a fault of this daemon's own", exc_info=error)
            self.engine.fail(ProtocolError(f"the daemon made a mistake of its own: {error!r}"))

    # -- seats

    def admit(self, member: Member, picture: Picture, node: int) -> Seat:
        """Seat a rank. Raises RefusedError, and changes nothing, where it can't be seated."""
        if self.group.failure is not None:
            raise RefusedError(f"generation {picture.generation} is over: {self.group.failure}")
        self.group.admit(member, picture, node)
        seat = self._seats[member.rank] = Seat(member)
        self._metrics.ranks_joined.inc()
        return seat

    def expect(self, rank: int) -> None:
        """All nodes are linked: now the rank opens its stream in time, or is lost."""
        if rank in self._seats:
            lost = f"it joined, but opened no stream within {LEASE_SECONDS:g} s"
            self._seats[rank].expect(LEASE_SECONDS, lambda: self.lose(rank, lost))

    def open(self, rank: int, carrier: Carrier) -> None:
        """A rank has opened its stream. Raises ProtocolError where it had before."""
        self._seats[rank].open(carrier)
        if carrier.inline and self._chain is not None:
            self._chain.streams(rank)

    def leave(self, rank: int) -> None:
        """A rank gives its seat back."""
        if rank in self._seats:
            self._vacate(rank)
            self.engine.leave(rank)
            self._office.depart(rank)
            self._end_if_empty()

    def lose(self, rank: int, reason: str) -> None:
        """A rank is gone without a word: the job is over."""
        if rank not in self._seats:
            return
        member, sequence = self._seats[rank].member, self.engine.under_way
        self._vacate(rank)
        meanwhile = "" if sequence is None else f" while round {sequence} was under way"
        self.engine.fail(LostError(f"{member} is lost: {reason}{meanwhile}"))
        self._end_if_empty()

    def mourn(self, rank: int, life: obituary.Life, otherwise: str) -> None:
        """A rank's line has ended: lose the rank, once it is known how its process ended."""
        if self.group.failure is None:
            obituary.mourn(life, partial(self.lose, rank), otherwise)
        else:
            self.lose(rank, otherwise)

    def seat_of(self, token: str) -> int | None:
        """The rank that holds this seat."""
        for rank, seat in self._seats.items():
            if seat.token == token:
                return rank
        return None

    def path(self, rank: int) -> str:
        """How a rank's tensors travel."""
        return self._seats[rank].path if rank in self._seats else ""

    def _vacate(self, rank: int) -> None:
        self._seats.pop(rank).close()
        self._metrics.ranks_joined.dec()

    def _end_if_empty(self) -> None:
        if self._seats:
            return
        if self.group.absent and self.group.failure is None:
            # Who left so early may have been faster than the others came.
            asyncio.get_running_loop().call_later(LEASE_SECONDS, self._end_if_still_empty)
        else:
            self.ended.set()

    def _end_if_still_empty(self) -> None:
        if not self._seats:
            self.ended.set()

    # -- letters

    def tray(self, rank: int) -> Tray:
        """See Office.tray."""
        return self._office.tray(rank)

    def send(self, rank: int, data: bytes) -> None:
        """See Office.send."""
        self._office.send(rank, data)

    # -- transport.base.PostReceiver

    def receive(self, source: int, message: Message) -> None:
        """See transport.base.Receiver."""
        self.engine.receive(source, message)
        if isinstance(message, Left):
            self._office.depart(message.rank)

    def post(self, source: int, note: pb.Note, payload: memoryview) -> None:
        """See transport.base.PostReceiver."""
        self._office.receive(source, note, payload)

    def lost(self, source: int, reason: str) -> None:
        """See transport.base.Receiver."""
        self.engine.lost(source, reason)

    # -- engine.Ranks

    def result(
        self, rank: int, key: Key, result: memoryview, found: Finding | None = None
    ) -> None:
        """See engine.Ranks."""
        if rank in self._seats:
            self._seats[rank].result(key, result, found)

    def failed(self, rank: int, sequence: int, failure: pb.Failure) -> None:
        """See engine.Ranks."""
        if failure.scope == pb.Failure.SCOPE_JOB:
            self.transport.wake()
        if rank in self._seats:
            self._seats[rank].failed(sequence, failure)

    # -- end

    async def close(self, error: ReductionError | None = None) -> None:
        """End the job; with an error, its ranks and peers are told."""
        if error is not None:
            self.engine.fail(error)
        for rank in list(self._seats):
            self._vacate(rank)
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self.engine.close()
        await self.transport.close()
        if self.arena is not None:
            self.arena.close()
        self._metrics.jobs.dec()


class Jobs:
    """All jobs of this daemon, by generation."""

    def __init__(self, make: Callable[[Group, pb.JoinRequest], Job]) -> None:
        self._make = make
        self._jobs: dict[str, Job] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._news = asyncio.Condition()
        self.served = 0
        self._stopping: ReductionError | None = None

    @property
    def all(self) -> list[Job]:
        """Jobs that have not ended."""
        return list(self._jobs.values())

    async def enter(self, picture: Picture, request: pb.JoinRequest) -> Job:
        """The job of this generation, made by the first rank that comes."""
        if self._stopping is not None:
            raise self._stopping
        job = self._jobs.get(picture.generation)
        if job is None:
            group = Group(picture, request.node)
            group.check_local(request.rank)
            job = self._make(group, request)
            self._jobs[picture.generation] = job
            self.served += 1
            self._ends.add(end := asyncio.create_task(self._end(job)))
            end.add_done_callback(self._ends.discard)
            async with self._news:
                self._news.notify_all()
        return job

    async def await_generation(self, generation: str) -> Job:
        """The job of this generation, as soon as its first local rank has come."""
        async with self._news:
            await self._news.wait_for(lambda: generation in self._jobs)
        return self._jobs[generation]

    async def idle(self, patience_seconds: float) -> None:
        """Return when the last job has ended, or none has come for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds), self._news:
                await self._news.wait_for(lambda: self.served > 0)
        async with self._news:
            await self._news.wait_for(lambda: not self._jobs)

    def find_seat(self, token: str) -> tuple[Job, int]:
        """Whose seat this is. Raises RefusedError where it is nobody's."""
        for job in self._jobs.values():
            if (rank := job.seat_of(token)) is not None:
                return job, rank
        if self._stopping is not None:
            raise self._stopping
        raise RefusedError("this seat is not known here: join first")

    async def close(self, error: ReductionError) -> None:
        """End all jobs; who comes now hears the error."""
        self._stopping = error
        for job in self.all:
            job.engine.fail(error)
        for end in self._ends:
            end.cancel()
        await asyncio.gather(*(job.close() for job in self.all))

    async def _end(self, job: Job) -> None:
        generation = job.group.picture.generation
        await job.ended.wait()
        await job.engine.drain()
        await job.close()
        del self._jobs[generation]
        # A job is a web of callbacks: its arena and its connections would stay until Python
        # looks. Its peers' streams and its ranks' lines, which point to it, end within moments.
        asyncio.get_running_loop().call_later(COLLECT_SECONDS, gc.collect)
        async with self._news:
            self._news.notify_all()
        log.info("generation %s has ended", generation[:8])
