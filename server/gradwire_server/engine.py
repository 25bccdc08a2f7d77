"""Carries out one generation's rounds on one node: the only place where a schedule meets I/O.

A round begins when all local ranks have brought their chunk. The engine sums these, then does
what the schedule says: sends shares, adds and stores what arrives. Rounds run side by side,
each in a task of its own; what fails, fails one collective (mismatch, lateness) or the job
(somebody is gone).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, assert_never

from gradwire_proto.v1 import aggregator_pb2
from gradwire_server.accounts import Accounts
from gradwire_server.departures import Departures
from gradwire_server.drawing import Drawing
from gradwire_server.errors import LostError, ReductionError, from_failure
from gradwire_server.execution import Arrived, Execution, Workplace
from gradwire_server.feedback import Feedback
from gradwire_server.headway import Headway
from gradwire_server.intake import Intake
from gradwire_server.lateness import Lateness
from gradwire_server.local import PrivateSlots
from gradwire_server.logs import about
from gradwire_server.meters import Meters
from gradwire_server.outlook import Outlook
from gradwire_server.reduce.choose import share_weights
from gradwire_server.round import Contribution, Extent, Key, Round, Rounds
from gradwire_server.settling import Settling
from gradwire_server.straggling import Straggling
from gradwire_server.tasks import Tasks
from gradwire_server.tracing import record_share
from gradwire_server.transport.base import Abort, Left, Message, Part, Transport
from gradwire_server.transport.precedence import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradwire_proto.progress import Muster
    from gradwire_server.chain import Chain
    from gradwire_server.group import Group
    from gradwire_server.kernels import Kernels
    from gradwire_server.local import Local, Ranks
    from gradwire_server.metrics import Metrics
    from gradwire_server.terms import Terms
    from gradwire_server.transport.precedence import Standing

log = logging.getLogger(__name__)

MOST_OPEN_ROUNDS = 1024
"""More than all slots of all ranks: a peer that begins more would only fill the memory."""

CLOSE_SECONDS = 5.0
"""How long a peer that takes nothing may hold up the end of a job."""


class Engine:
    """One generation on one node. All methods are called on the event loop."""

    def __init__(  # noqa: PLR0913 - what a generation is made of; Job puts it together
        self,
        group: Group,
        terms: Terms,
        ranks: Ranks,
        chain: Chain | None,
        kernels: Kernels,
        metrics: Metrics,
        standing: Standing = ALONE,
        feedback: Feedback | None = None,
    ) -> None:
        self.group = group
        self.failed_count = 0
        self.suspended = False
        self._chain = chain
        self._terms = terms
        self._ranks = ranks
        self._metrics = metrics
        self._standing = standing
        self.lateness = Lateness(group, metrics, terms)
        self.meters = Meters(group.peers)
        bandwidths = group.picture.bandwidths
        weights = share_weights(bandwidths) if bandwidths else ()
        self.feedback = feedback or Feedback(terms.folder, terms.chunk_bytes, metrics)
        self.geometry = terms.geometry(group.picture)
        self._workplace = Workplace(
            group, terms.schedule, kernels, self._standing, self.feedback, self.meters, weights
        )
        self._transport: Transport | None = None
        self._rounds: Rounds[Arrived] = Rounds(group.local_ranks)
        self.headway = Headway(group, chain, self._rounds)
        self._running: dict[Key, Execution] = {}
        self._tasks = Tasks(self.fail)
        self.settling = Settling(group.peers, keeps=terms.resume_seconds > 0)
        self._departures = Departures(
            group, self._rounds, chain, self.headway, self.settling, self.fail
        )
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self.straggling = Straggling(group.local_ranks, self._clock())
        self.accounts = Accounts(chain, group.local_ranks, metrics)
        self._drawing = Drawing(metrics.recorder, group.picture.generation, chain)
        self._intake = Intake(
            group,
            self._rounds,
            chain,
            PrivateSlots(terms.slots, terms.chunk_bytes),
            terms.chunk_bytes,
            ranks,
            metrics,
            self,
            self._clock,
            self.accounts,
        )
        self._outlook = Outlook(self, chain, terms, metrics)

    def connect(self, transport: Transport) -> None:
        """Use these links. Before any round, unless the node is alone."""
        self._transport = transport
        self.settling.connect(transport)

    @property
    def running(self) -> int:
        """Rounds that are carried out and have no result."""
        return len(self._running)

    # -- from the local ranks

    def contribute(self, rank: int, key: Key, contribution: Contribution) -> None:
        """A local rank brings a chunk. Failures go to the ranks, nothing is raised."""
        if self.suspended:
            return
        if not key.chunk:
            self.straggling.came(rank, key.sequence, self._clock())
        self._intake.contribute(rank, key, contribution)

    def ring(self, rank: int, ring: aggregator_pb2.Ring) -> None:
        """See Intake.ring."""
        if not self.suspended:
            self._intake.ring(rank, ring)

    def begin(self, round_: Round[Arrived], extent: Extent, local: Local) -> None:
        """All local ranks have brought their part of a round."""
        execution = Execution(round_, extent, local, self._workplace, self._transport)
        self._running[round_.key] = execution
        self._drawing.begin(execution)
        execution.task = self._tasks.spawn(self._carry_out(execution))
        self._standing.begin()
        self.settling.begin(round_.key)
        # Not by the task itself: one that is cancelled before its first step does nothing.
        execution.task.add_done_callback(lambda _: self._put_away(execution))

    def _put_away(self, execution: Execution) -> None:
        """The round's task has ended; its result may be needed still."""
        self._standing.end()
        self._drawing.end(execution)
        execution.give_back()
        key = execution.round.key
        if execution.published:
            self.settling.keep(key, execution.local.release)
        else:
            execution.local.release()
            if not self.suspended:
                # Else it has no result, and has not failed: others must keep theirs.
                self.settling.end(key)

    def leave(self, rank: int) -> None:
        """A local rank leaves in good order."""
        sequences = self.headway.sequences(rank)
        self._broadcast(Left(rank, sequences))
        self._departures.depart(rank, sequences)

    # -- from the other nodes

    def receive(self, source: int, message: Message) -> None:
        """See transport.base.Receiver."""
        if self.suspended:
            return
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
        self._departures.depart(rank, sequences)

    def settled(self, source: int, before: Key) -> None:
        """See transport.base.Receiver."""
        self.settling.settled(source, before)

    def outrun(self, attempt: int) -> None:
        """See transport.base.Receiver; the job's matter."""

    def lost(self, source: int, reason: str) -> None:
        """See transport.base.Receiver."""
        node = self.group.picture.describe(source)
        there = self.group.picture.nodes[source]
        text, ranks = f"the daemon of {node} is lost: {reason}", there.ranks
        self.fail(LostError(text, round_=self.headway.under_way, ranks=ranks))

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
        if self._metrics.recorder.on:
            record_share(self._metrics.recorder, self.group, source, part)
        if (execution := self._running.get(part.key)) is not None:
            execution.wake()
            return
        self.straggling.asked(part.key.sequence, self._clock())
        if len(self._rounds.open) > MOST_OPEN_ROUNDS:
            self.lost(source, f"it broke the rules: it began over {MOST_OPEN_ROUNDS} rounds")

    # -- one round

    async def _carry_out(self, execution: Execution) -> None:
        key, began = execution.round.key, self._clock()
        self._workplace.kernels.rounds += 1
        try:
            total = await execution.reduce()
            self._rounds.close(key)
            execution.settle()
            execution.watch.stop(time.monotonic_ns())
            execution.local.publish(total, execution.watch)
            # From here on only its last sends are under way: nothing that fails calls them off.
            self._running.pop(key, None)
            self._metrics.bytes_out.inc(execution.extent.size * execution.local.parts)
            execution.published = True
            self.settling.end(key)
            await execution.sent()
        except ReductionError as error:
            self.fail_round(key.sequence, error)
        finally:
            self._workplace.kernels.rounds -= 1
            self._running.pop(key, None)
        if execution.published:
            self.headway.count()
            of = self.group.picture.generation, key.sequence
            self._metrics.round_done(execution.name, self._clock() - began, of)

    # -- failure

    def fail_round(
        self, sequence: int, error: ReductionError, *, tell_peers: bool = True
    ) -> None:
        """One collective has failed; the ranks can go on with the next."""
        dropped = None if self.suspended else self._rounds.fail(sequence, error)
        if dropped is None or self.group.failure is not None:
            return
        generation = self.group.picture.generation
        log.warning(
            "generation %s: %s",
            *(generation[:8], error),
            extra=about(generation, round_=sequence, ranks=error.ranks),
        )
        self._metrics.errors.labels(kind=type(error).__name__).inc()
        self.failed_count += 1
        self.feedback.failed(sequence)
        if self._chain is not None:
            self._chain.count_failure()
        self._cancel(round_.key for round_ in dropped)
        if tell_peers:
            failure = error.failure(aggregator_pb2.Failure.SCOPE_ROUND)
            self._broadcast(Abort(sequence, failure))
        # Ranks of a chain pass over what has failed, even what they have not come to yet.
        streaming = self._chain is None or self._chain.streaming
        for rank in self._rounds.begun(sequence) if streaming else self.group.local_ranks:
            self._tell(rank, sequence, error, aggregator_pb2.Failure.SCOPE_ROUND)

    def resume(self, muster: Muster) -> None:
        """Go on where an earlier attempt has ended; before any rank knows its seat."""
        high = muster.high
        self.feedback.resume(muster)
        self._rounds.resume(muster.low.collective, Key(high.collective + 1, high.chunk))
        for number, failure in muster.lapses.items():
            self._rounds.fail(number + 1, from_failure(failure))

    def suspend(self) -> None:
        """The generation is taken up again: nothing gets a result here any more."""
        self.suspended = True
        self._cancel(list(self._running))
        self._rounds.clear()

    def fail(self, error: ReductionError, *, tell_peers: bool = True) -> None:
        """The job has failed; every open and later collective fails alike."""
        if self.suspended or not self.group.fail(error):
            return
        generation = self.group.picture.generation
        log.error(
            "generation %s is over: %s",
            *(generation[:8], error),
            extra=about(generation, round_=error.round, ranks=error.ranks),
        )
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
                self._tasks.spawn(self._transport.send(peer, message))

    # -- time

    def draw(self) -> None:
        """Somebody may have begun to listen."""
        if self._drawing.wanted:
            self._tasks.spawn(self._drawing.follow())

    async def watch(self) -> None:
        """Name who is late, and fail what waits too long. Runs until cancelled."""
        while True:
            await asyncio.sleep(min(1.0, self._terms.warn_seconds / 4))
            now = self._clock()
            self._departures.check()
            waiting = self.headway.waiting(now)
            for sequence, error in self.lateness.look(waiting, now, self.headway.is_over):
                self.fail_round(sequence, error)
            came = self.headway.arrivals(self.straggling.since)
            self.straggling.look(now, self.group.members, came)
            self.accounts.look(now)
            self.draw()

    async def drain(self) -> None:
        """All local ranks have left: let what they have brought come to its end.

        The other nodes are told of what does not within a while, since they wait for it.
        """
        tasks = [execution.task for execution in self._running.values()]
        waiting = [task for task in tasks if task is not None]
        if waiting and self.group.failure is None:
            await asyncio.wait(waiting, timeout=CLOSE_SECONDS)
        for sequence in sorted({key.sequence for key in self._running}):
            who = self.group.picture.describe(self.group.node)
            text = f"round {sequence} can't complete: the ranks of {who} left"
            ranks = self.group.local_ranks
            self.fail_round(sequence, LostError(text, round_=sequence, ranks=ranks))

    async def close(self) -> None:
        """End all rounds; returns when nothing of this engine runs any more."""
        self._outlook.close()
        self._drawing.close()
        self.lateness.close()
        if not self.suspended:
            # Else what is kept is to be read still, by ranks that come back.
            self.settling.close()
        self._cancel(list(self._running))
        await self._tasks.end(CLOSE_SECONDS)
        self.accounts.close()
        if self._chain is not None:
            self._chain.close(self._metrics)
