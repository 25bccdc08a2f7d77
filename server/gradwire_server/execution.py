"""One round being carried out: the local sum, then what the schedule says."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, assert_never

from gradwire_proto.chunks import share_ranges
from gradwire_proto.v1 import peer_pb2, tensor_pb2
from gradwire_proto.wires import WIRE_NAMES
from gradwire_server.coding import CodedSum, seed_of
from gradwire_server.errors import ProtocolError, WeightError
from gradwire_server.kernels import ChunkSum, Kernels
from gradwire_server.reduce.choose import NAMES, choose, choose_lossy, reducer
from gradwire_server.reduce.effects import Add, Done, Effect, Finish, Fold, Frame, Send, Store
from gradwire_server.stopwatch import Stopwatch
from gradwire_server.transport.base import Part, Transport

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from gradwire_proto.stages import Stage
    from gradwire_server.feedback import Feedback, Loan
    from gradwire_server.group import Group
    from gradwire_server.local import Local
    from gradwire_server.meters import Meters
    from gradwire_server.round import Coding, Extent, Round
    from gradwire_server.transport.precedence import Standing

P = ParamSpec("P")

BRIEF_BYTES = 64 * 1024
"""Sums of no more need no turn: they are over before another would have been called."""

Arrived: TypeAlias = tuple[int, Part]
"""What another node sent, and which."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all rounds of a generation share."""

    group: Group
    schedule: peer_pb2.Schedule | None
    kernels: Kernels
    standing: Standing
    feedback: Feedback
    meters: Meters
    weights: tuple[Fraction, ...] = ()
    """What each node adds up of a chunk in a direct exchange; nothing: the same."""


class Execution:
    """One round, from the moment all local ranks have brought their chunk."""

    def __init__(
        self,
        round_: Round[Arrived],
        extent: Extent,
        local: Local,
        workplace: Workplace,
        transport: Transport | None,
    ) -> None:
        self.round = round_
        self.extent = extent
        self.local = local
        self.task: asyncio.Task[None] | None = None
        self.watch = Stopwatch(local.begun)
        self.published = False
        """The local ranks have the result."""
        self._workplace = workplace
        self._transport = transport
        self._nodes = len(workplace.group.picture.nodes)
        # Nothing is lost where nothing crosses a wire.
        self._coding = round_.spec.coding if self._nodes > 1 else None
        self._loan: Loan | None = None
        self._schedule = self._choose()
        self._reducer = reducer(self._schedule, workplace.group.node, self._nodes)
        self._arrival = asyncio.Event()
        self._parts: dict[Frame, Part] = {}
        self._final: set[int] = set()
        self._sends: set[asyncio.Task[None]] = set()

    def _choose(self) -> peer_pb2.Schedule:
        pinned, weights = self._workplace.schedule, self._workplace.weights
        if self._coding is not None:
            return choose_lossy(self._nodes, pinned)
        gathers = self.round.spec.op == tensor_pb2.OP_GATHER
        size = self.extent.size
        return pinned or choose(size, self._nodes, alike=not weights, gathers=gathers)

    @property
    def name(self) -> str:
        """The schedule in words."""
        return NAMES[self._schedule] if self._nodes > 1 else "local"

    def wake(self) -> None:
        """Another node's part has been added to the round."""
        self._arrival.set()

    def cancel(self) -> None:
        """Give the round up. Its buffers are in use until its task has ended."""
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    async def reduce(self) -> ChunkSum:
        """The reduced chunk; ProtocolError where a peer breaks the rules."""
        if self._coding is None:
            self._total = ChunkSum(
                self.round.spec,
                await self.local.take(),
                self.extent.elements,
                self._shares(),
                self._workplace.group.picture.world_size,
            )
        else:
            self._total = await self._coded(self._coding)
        try:
            size = self.extent.size * self.local.parts
            await self._run("local_sum", size, self.local.add, self._total)
            await self._exchange()
        except BaseException:
            await self._give_up()
            raise
        return self._total

    async def _coded(self, coding: Coding) -> CodedSum:
        spec, key, group = self.round.spec, self.round.key, self._workplace.group
        if coding.identity and (coding.feedback or coding.stochastic):
            feedback = self._workplace.feedback
            self._loan = await feedback.lend(coding, spec.elements, key.chunk, key.sequence)
        count = None if self._loan is None else self._loan.count
        return CodedSum(
            spec,
            coding,
            await self.local.take(),
            self.extent.elements,
            self._shares(),
            group.picture.world_size,
            hands_out=self._schedule == peer_pb2.SCHEDULE_DIRECT,
            seed=seed_of(coding, key, group.node, count),
            loan=self._loan,
            ranks=len(group.local_ranks),
            meter=self._workplace.meters.codec(WIRE_NAMES[coding.wire]),
        )

    def settle(self) -> None:
        """The result is there: what was lost on the way to it is to be made good."""
        loan, self._loan = self._loan, None
        if loan is not None:
            self._workplace.feedback.done(self.round.sequence, loan)

    def give_back(self) -> None:
        """The task has ended: nothing here uses what it was lent."""
        if self._loan is not None:
            self._loan.release()

    def _shares(self) -> list[tuple[int, int]]:
        weighted = self._schedule == peer_pb2.SCHEDULE_DIRECT
        weights = self._workplace.weights if weighted else ()
        return share_ranges(self._reducer.shares, self.extent.elements, weights)

    async def sent(self) -> None:
        """Return once the other nodes have what they need of the result."""
        try:
            if self._sends:
                await asyncio.gather(*self._sends)
        except BaseException:
            await self._give_up()
            raise

    async def _give_up(self) -> None:
        for send in self._sends:
            send.cancel()
        if self._sends:
            await asyncio.wait(self._sends)

    async def _run(
        self, stage: Stage, size: int, work: Callable[P, None], *args: P.args, **kw: P.kwargs
    ) -> None:
        times: list[int] = []

        def timed() -> None:
            times.append(time.monotonic_ns())
            work(*args, **kw)
            times.append(time.monotonic_ns())

        if size > BRIEF_BYTES:
            await self._workplace.standing.work()
        await self._workplace.kernels.run(size, timed)
        # Not the time until a thread had begun, or this task goes on.
        self.watch.lap(stage, *times)

    async def _exchange(self) -> None:
        effects = self._reducer.start()
        while True:
            for effect in effects:
                if isinstance(effect, Done):
                    return
                await self._apply(effect)
            source, part = await self._next()
            frame = Frame(source, part.step, part.share)
            if frame in self._parts:
                raise ProtocolError(f"{self.round}: {frame} came twice")
            self._parts[frame] = part
            effects = self._reducer.receive(frame)

    async def _next(self) -> Arrived:
        begun = 0 if self.round.arrived else time.monotonic_ns()
        while not self.round.arrived:
            self._arrival.clear()
            await self._arrival.wait()
        source, part = self.round.arrived.popleft()
        if begun:
            left = None if part.left_at is None else int(part.left_at * 1e9)
            self.watch.wait(begun, left, int(part.came_at * 1e9), time.monotonic_ns())
        if part.schedule != self._schedule:
            raise ProtocolError(
                f"{self.round}: node {source} uses {NAMES.get(part.schedule, part.schedule)},"
                " this"
                f" node {NAMES[self._schedule]}; give all daemons the same --schedule"
            )
        return source, part

    async def _apply(self, effect: Effect) -> None:
        match effect:
            case Send(share=share):
                if not self._total.is_ready(share):
                    size = self._total.partial_bytes(share)
                    await self._run("encode", size, self._total.encode, share)
                # A task, not an await: what arrives is added while this waits for the link.
                sending = self._send(effect.target, self._part(effect))
                self._sends.add(asyncio.create_task(sending))
            case Add(frame=frame):
                await self._add(frame)
            case Fold(frames=frames):
                await self._fold(frames)
            case Finish(share=share):
                await self._finish(share)
            case Store(frame=frame):
                await self._store(frame)
            case Done():
                raise AssertionError("the exchange ends before Done is applied")
            case _:
                assert_never(effect)

    async def _add(self, frame: Frame) -> None:
        part = self._take_partial(frame)
        share, pieces, weight = frame.share, part.pieces, part.weight
        await self._run("decode", part.size, self._total.add, share, pieces, weight)
        self._total.note(frame.share, part.finding)

    async def _fold(self, frames: tuple[Frame, ...]) -> None:
        if self._coding is None:
            # What is being sent lies where the sum will.
            begun = time.monotonic_ns()
            await asyncio.gather(*self._sends)
            self.watch.lap("wire", begun, time.monotonic_ns())
        share, own = frames[0].share, self._workplace.group.node
        size = self._total.partial_bytes(share)
        parts = [(frame.source, self._take_partial(frame)) for frame in frames]
        before = [(part.pieces, part.weight) for source, part in parts if source < own]
        after = [(part.pieces, part.weight) for source, part in parts if source > own]
        await self._run("decode", size * len(parts), self._total.fold, share, before, after)
        for _, part in parts:
            self._total.note(share, part.finding)

    async def _finish(self, share: int) -> None:
        if not self._total.has_result(share):
            world_size = self._workplace.group.picture.world_size
            raise WeightError.of(self.round.sequence, world_size)
        await self._run("decode", self._total.partial_bytes(share), self._total.finish, share)
        self._final.add(share)

    async def _store(self, frame: Frame) -> None:
        part = self._take(frame, self._total.final_bytes(frame.share))
        share, pieces = frame.share, part.pieces
        await self._run("decode", part.size, self._total.store, share, pieces, part.finding)
        self._final.add(frame.share)

    def _take_partial(self, frame: Frame) -> Part:
        weight = self._parts[frame].weight
        return self._take(frame, self._total.arriving_bytes(frame.share, weight))

    def _take(self, frame: Frame, size: int) -> Part:
        part = self._parts.pop(frame)
        if part.size != size:
            raise ProtocolError(
                f"{self.round}: share {part.share} has {part.size} bytes, expected {size}"
            )
        raw = self._total.raw_bytes(frame.share, size)
        self._workplace.meters.payloads[frame.source].received += raw
        return part

    def _part(self, effect: Send) -> Part:
        """What is to be sent, as it is now."""
        total, share = self._total, effect.share
        return Part(
            self.round.key,
            self._schedule,
            effect.step,
            share,
            total.weights[share],
            self.round.spec,
            (total.final(share) if share in self._final else total.partial(share),),
            total.findings[share],
        )

    async def _send(self, target: int, part: Part) -> None:
        assert self._transport is not None, "a node with peers is connected first"  # noqa: S101
        raw = self._total.raw_bytes(part.share, part.size)
        self._workplace.meters.payloads[target].sent += raw
        await self._transport.send(target, part)
