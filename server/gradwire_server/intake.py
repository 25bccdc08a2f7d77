"""What the local ranks bring, made into rounds; or into failures, where it breaks the rules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from gradwire_proto.v1 import aggregator_pb2, tensor_pb2
from gradwire_server.errors import LostError, ProtocolError, ReductionError, WeightError
from gradwire_server.local import Chained, Local, PrivateSlots, Ranks, Streamed
from gradwire_server.round import Contribution, Extent, Key, Round, Rounds, Spec, mismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_proto.control import Ticket
    from gradwire_server.accounts import Accounts
    from gradwire_server.chain import Chain
    from gradwire_server.execution import Arrived
    from gradwire_server.group import Group
    from gradwire_server.metrics import Metrics

    Clock = Callable[[], float]


class Carrier(Protocol):
    """Who carries rounds out, and ends what fails."""

    def begin(self, round_: Round[Arrived], extent: Extent, local: Local) -> None:
        """All local ranks have brought their part of a round."""
        ...

    def fail_round(self, sequence: int, error: ReductionError) -> None:
        """One collective has failed."""
        ...

    def fail(self, error: ReductionError) -> None:
        """The job has failed."""
        ...


class Intake:
    """The door through which one generation's local ranks come."""

    def __init__(  # noqa: PLR0913 - what a generation is made of; Engine puts it together
        self,
        group: Group,
        rounds: Rounds[Arrived],
        chain: Chain | None,
        slots: PrivateSlots,
        chunk_bytes: int,
        ranks: Ranks,
        metrics: Metrics,
        to: Carrier,
        clock: Clock,
        accounts: Accounts,
    ) -> None:
        self._group = group
        self._rounds = rounds
        self._chain = chain
        self._slots = slots
        self._chunk_bytes = chunk_bytes
        self._ranks = ranks
        self._metrics = metrics
        self._to = to
        self._clock = clock
        self._accounts = accounts

    # -- from local ranks that send their chunks

    def contribute(self, rank: int, key: Key, contribution: Contribution) -> None:
        """A local rank brings a chunk. Failures go to the ranks, nothing is raised."""
        if (failure := self._group.failure) is not None:
            scope = aggregator_pb2.Failure.SCOPE_JOB
            self._ranks.failed(rank, key.sequence, failure.failure(scope))
            return
        try:
            extent = self._admit(rank, key, contribution)
        except ReductionError as error:
            self._to.fail(error)
            return
        if (failure := self._rounds.failure(key.sequence)) is not None:
            scope = aggregator_pb2.Failure.SCOPE_ROUND
            self._ranks.failed(rank, key.sequence, failure.failure(scope))
            return
        round_ = self._rounds.get(key, self._clock())
        assert round_ is not None, "a round can't be over before its ranks came"  # noqa: S101
        try:
            round_.contribute(rank, contribution, time.monotonic_ns())
        except ReductionError as error:
            self._to.fail_round(key.sequence, error)
            return
        self._metrics.bytes_in.inc(extent.size)
        if not round_.missing:
            present = [each for each in self._group.local_ranks if each in self._group.members]
            local = Streamed(round_, self._slots, present, self._ranks, self._accounts)
            self._to.begin(round_, extent, local)

    def _admit(self, rank: int, key: Key, contribution: Contribution) -> Extent:
        """Which chunk it is; raises where the rank breaks the rules or others are gone."""
        extent = contribution.extent(f"rank {rank}", key.chunk, self._chunk_bytes)
        self._rounds.advance(rank, key, final=extent.final)
        self._group.check(key.sequence)
        if self._chain is not None and self._chain.in_use:
            raise ProtocolError(f"rank {rank} sent a chunk, though it shares memory")
        in_flight = sum(rank in round_.contributions for round_ in self._rounds.open)
        if in_flight >= self._slots.count:
            raise ProtocolError(
                f"rank {rank} has more than {self._slots.count} chunks in flight"
            )
        payload, expected = contribution.payload, 0 if contribution.is_blank else extent.size
        if payload is None or payload.nbytes != expected:
            got = 0 if payload is None else payload.nbytes
            raise ProtocolError(
                f"rank {rank} brought a chunk of {got} bytes, expected {expected}"
            )
        return extent

    # -- from local ranks that share memory

    def ring(self, rank: int, ring: aggregator_pb2.Ring) -> None:
        """A local rank says that there is something to look at. Failures go to the ranks.

        Raises ProtocolError where there is no memory to look at.
        """
        if self._chain is None:
            raise ProtocolError(f"rank {rank} rang, though it shares no memory")
        if self._group.failure is not None:
            return
        try:
            self._hear(rank, ring, self._chain)
        except ReductionError as error:
            self._to.fail(error)
        except ValueError as error:
            self._to.fail(ProtocolError(f"rank {rank} rang, but {error}"))

    def _hear(self, rank: int, ring: aggregator_pb2.Ring, chain: Chain) -> None:
        if ring.HasField("beyond"):
            self._group.check(ring.beyond)
        elif ring.HasField("disagreement"):
            self._disagree(rank, ring.disagreement)
        elif ring.HasField("weightless"):
            error = WeightError.of(ring.weightless, self._group.picture.world_size)
            self._to.fail_round(ring.weightless, error)
        else:
            for number, ticket in chain.ready():
                self._summed(number, ticket)

    def _disagree(self, rank: int, ring: aggregator_pb2.Disagreement) -> None:
        first, mine, theirs = self._group.local_ranks[0], ring.mine, ring.theirs
        error = mismatch(
            ring.sequence, f"rank {first}", Spec.read(theirs), f"rank {rank}", Spec.read(mine)
        )
        self._to.fail_round(ring.sequence, error)

    def _summed(self, number: int, ticket: Ticket | None) -> None:
        """All local ranks have added their part of a ticket."""
        assert self._chain is not None, "see ring"  # noqa: S101
        local = Chained(self._chain, number)
        if ticket is None or self._group.failure is not None:
            local.release()
            return
        key = Key(ticket.sequence, ticket.chunk)
        spec = Spec.read(tensor_pb2.Spec.FromString(ticket.spec))
        contribution = Contribution(spec, self._chain.weight(number))
        self._rounds.passed(key)
        who = self._group.picture.describe(self._group.node)
        extent = contribution.extent(who, key.chunk, self._chunk_bytes)
        round_ = self._rounds.get(key, self._clock())
        if round_ is None:
            local.release()
            return
        try:
            self._group.check(key.sequence)
            round_.summed(who, contribution)
        except ReductionError as error:
            local.release()
            if isinstance(error, LostError):
                raise
            self._to.fail_round(key.sequence, error)
            return
        self._to.begin(round_, extent, local)
