"""One generation of a job on this daemon: its seats, its memory, its links, its engine."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from gradwire_proto.progress import Muster, muster
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server import obituary
from gradwire_server.chain import Chain
from gradwire_server.engine import Engine
from gradwire_server.errors import (
    BehindError,
    LostError,
    ProtocolError,
    ReductionError,
    RefusedError,
)
from gradwire_server.feedback import Feedback
from gradwire_server.logs import about
from gradwire_server.office import Office, Tray
from gradwire_server.seat import Carrier, Seat
from gradwire_server.settlement import FIRST
from gradwire_server.shared_memory import Keeper, name_of
from gradwire_server.transport.base import Left, Message
from gradwire_server.transport.grpc import GrpcTransport

if TYPE_CHECKING:
    from gradwire_proto.nonfinite import Finding
    from gradwire_server.group import Group, Member, Picture
    from gradwire_server.kernels import Kernels
    from gradwire_server.metrics import Metrics
    from gradwire_server.round import Key
    from gradwire_server.shared_memory import Arena
    from gradwire_server.terms import Terms
    from gradwire_server.transport.precedence import Precedence

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
"""A rank that has joined opens its stream within this time, or is lost."""


class Job:
    """One attempt of a generation.

    Admits ranks, hands their chunks to the engine, and ends when the last one is gone, or when
    the generation is taken up again because some node's daemon was lost.
    """

    def __init__(  # noqa: PLR0913 - what a job is made of; daemon puts it together
        self,
        group: Group,
        terms: Terms,
        arena: Arena | None,
        kernels: Kernels,
        metrics: Metrics,
        precedence: Precedence,
        attempt: int = 0,
        feedback: Feedback | None = None,
    ) -> None:
        self.group = group
        self.terms = terms
        self.arena = arena
        self.attempt = attempt
        self.latest = attempt
        """The attempt that the generation is at, as far as is known here."""
        name = name_of(group.picture.generation, group.node)
        self.feedback = feedback or _feedback(name, terms, metrics, attempt)
        self.muster: Muster | None = None
        """How far all ranks are; in attempts after the first, once all nodes are linked."""
        resumes = arena is not None and terms.resume_seconds > 0
        self.keeper = Keeper(terms.folder.path, name) if resumes else None
        self._progress: dict[int, pb.Progress] = {}
        self._outrun = asyncio.Event()
        self._abandoning: asyncio.Task[None] | None = None
        self._expecting: asyncio.TimerHandle | None = None
        self._chain = (
            None if arena is None else Chain(arena, group.local_ranks, alone=not group.peers)
        )
        standing = precedence.standing(urgent=terms.urgent)
        self.engine = Engine(
            group, terms, self, self._chain, kernels, metrics, standing, self.feedback
        )
        self._office = Office(group, terms.chunk_bytes)
        self.transport = GrpcTransport(
            group,
            terms.chunk_bytes,
            self,
            metrics,
            terms.connections,
            standing,
            attempt=attempt,
            resume_seconds=terms.resume_seconds,
            timeout_seconds=terms.timeout_seconds,
            most_untold=max(1, terms.slots // 2 - 1),
            credentials=terms.credentials,
            job=terms.job,
        )
        self.engine.connect(self.transport)
        self._office.connect(self.transport)
        self.transport.dial()
        self.ended = asyncio.Event()
        self._metrics = metrics
        self._seats: dict[int, Seat] = {}
        self._watch = asyncio.create_task(self.engine.watch())
        self._watch.add_done_callback(self._watched)
        metrics.job_begun(attempt)

    def _watched(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            extra = about(self.group.picture.generation)
            log.error("a fault of this daemon's own", exc_info=error, extra=extra)
            self.engine.fail(ProtocolError(f"the daemon made a mistake of its own: {error!r}"))

    # -- seats

    def admit(
        self, member: Member, picture: Picture, node: int, progress: pb.Progress | None = None
    ) -> Seat:
        """Seat a rank. Raises RefusedError, and changes nothing, where it can't be seated."""
        if self.group.failure is not None:
            raise RefusedError(f"generation {picture.generation} is over: {self.group.failure}")
        self.group.admit(member, picture, node)
        seat = self._seats[member.rank] = Seat(member)
        self._metrics.ranks_joined.inc()
        if self.attempt and progress is not None:
            self._progress[member.rank] = progress
            if not self.group.absent:
                self.transport.progress = list(self._progress.values())
                self.transport.ready.set()
                self.transport.wake()
        return seat

    async def formed(self, seconds: float) -> None:
        """Return once all nodes are linked.

        Raises LostError with what is in the way after so long, BehindError where this attempt
        is over before that.
        """
        linked = asyncio.create_task(self.transport.linked(seconds))
        outrun = asyncio.create_task(self._outrun.wait())
        try:
            await asyncio.wait({linked, outrun}, return_when=asyncio.FIRST_COMPLETED)
            if self.latest > self.attempt:
                raise BehindError(self.latest)
            linked.result()
        finally:
            linked.cancel()
            outrun.cancel()
            await asyncio.gather(linked, outrun, return_exceptions=True)
        if self.attempt and self.muster is None:
            self.muster = muster(self.progress)
            self.engine.resume(self.muster)

    @property
    def progress(self) -> list[pb.Progress]:
        """Of all ranks, in attempts after the first, once it has formed."""
        others = [each for some in self.transport.standing.values() for each in some]
        return [*self._progress.values(), *others]

    def outrun(self, attempt: int) -> None:
        """See transport.base.Receiver: the generation is taken up again.

        This attempt is over: its ranks are told to come again, and get no results any more.
        """
        if attempt <= self.latest or self.group.failure is not None:
            return
        first, self.latest = self.latest == self.attempt, attempt
        if not first:
            return
        generation = self.group.picture.generation
        log.warning(
            "generation %s is taken up again: attempt %d",
            *(generation[:8], attempt),
            extra=about(generation, round_=self.engine.headway.under_way),
        )
        self.engine.suspend()
        self._abandoning = asyncio.create_task(self.transport.abandon())
        self._outrun.set()
        for seat in self._seats.values():
            seat.call_back(attempt)
        patience = self.terms.resume_seconds + LEASE_SECONDS
        asyncio.get_running_loop().call_later(patience, self.ended.set)

    @property
    def is_outrun(self) -> bool:
        """The generation is at a later attempt."""
        return self.latest > self.attempt

    def expect_ranks(self) -> None:
        """End where the rank for which this was made, and all others, do not take a seat."""
        loop = asyncio.get_running_loop()
        self._expecting = loop.call_later(LEASE_SECONDS, self._end_if_still_empty)

    def expect(self, rank: int) -> None:
        """All nodes are linked: now the rank opens its stream in time, or is lost."""
        if rank in self._seats:
            lost = f"it joined, but opened no stream within {LEASE_SECONDS:g} s"
            self._seats[rank].expect(LEASE_SECONDS, lambda: self.lose(rank, lost))

    def open(self, rank: int, carrier: Carrier) -> None:
        """A rank has opened its stream. Raises ProtocolError where it had before."""
        self._seats[rank].open(carrier)
        if carrier.inline and self.terms.resume_seconds:
            # It says itself what it has.
            self.engine.settling.hold(rank, FIRST)
        if carrier.inline and self._chain is not None:
            self._chain.streams(rank)

    def withdraw(self, rank: int) -> None:
        """The rank has no seat in this attempt any more."""
        if rank in self._seats:
            self._vacate(rank)

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
        member, sequence = self._seats[rank].member, self.engine.headway.under_way
        self._vacate(rank)
        if self.is_outrun:
            return
        meanwhile = "" if sequence is None else f" while round {sequence} was under way"
        text = f"{member} is lost: {reason}{meanwhile}"
        self.engine.fail(LostError(text, round_=sequence, ranks=[rank]))
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

    def subject(self, rank: int) -> dict[str, object]:
        """Of what a line about this rank is."""
        return about(self.group.picture.generation, ranks=[rank])

    def path(self, rank: int) -> str:
        """How a rank's tensors travel."""
        return self._seats[rank].path if rank in self._seats else ""

    def _vacate(self, rank: int) -> None:
        self._seats.pop(rank).close()
        self._metrics.ranks_joined.dec()

    def _end_if_empty(self) -> None:
        if self._seats or self.is_outrun:
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

    def settled(self, source: int, before: Key) -> None:
        """See transport.base.Receiver."""
        self.engine.settled(source, before)

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
        if self._expecting is not None:
            # It would keep all of this, and with it connections, until its time comes.
            self._expecting.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self.engine.close()
        if self._abandoning is None:
            await self.transport.close()
        else:
            # Who waits may be called off; what he waits for goes on.
            await asyncio.shield(self._abandoning)
        if self.arena is not None:
            self.arena.close()
        if self.keeper is not None:
            self.keeper.close(unlink=not self.is_outrun)
        self._metrics.jobs.dec()


def _feedback(name: str, terms: Terms, metrics: Metrics, attempt: int) -> Feedback:
    """What was lost on lossy wires: nothing yet, or what a daemon before this one has left."""
    feedback = Feedback(terms.folder, terms.chunk_bytes, metrics, name)
    if attempt:
        feedback.adopt()
    return feedback
