"""Whole jobs that can be disturbed."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

from gradwire_proto.chunks import cut
from gradwire_proto.v1 import aggregator_pb2
from gradwire_server.errors import LostError, StoppingError
from gradwire_server.reduce.choose import SCHEDULES
from gradwire_server.round import Key
from gradwire_server.testing_job import CHUNK_BYTES, MemoryJob, job
from gradwire_server.transport.base import Part

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from exploring.course import Course
    from gradwire_server.transport.base import Message
    from gradwire_server.transport.memory import MemoryTransport

Failure = aggregator_pb2.Failure
Outcome: TypeAlias = torch.Tensor | aggregator_pb2.Failure

SLOTS = 4
"""So few that one that is not given back is missed by the next round."""

LONGEST_DELAY_SECONDS = 0.01


class Subject(Protocol):
    """What is disturbed: a whole job, whatever it consists of."""

    step: Callable[[], None]
    """Called at every message between nodes."""

    def bring(self, rank: int, sequence: int, tensor: torch.Tensor) -> None:
        """A rank hands in a tensor to be summed."""
        ...

    def kill(self, node: int) -> None:
        """A node is gone, and all see it."""
        ...

    async def outcome(self, rank: int, sequence: int, like: torch.Tensor) -> Outcome:
        """A rank's result of a collective, or why there is none."""
        ...


class Disturbed:
    """A transport that holds every message up for a while, and keeps what it has sent.

    Parts of one round stay in order. All else may overtake: so says transport.base.
    """

    def __init__(self, inner: MemoryTransport, subject: Subject, seed: int) -> None:
        self._inner = inner
        self._subject = subject
        self._random = random.Random(seed)  # noqa: S311 - delays, not a secret
        self._turns: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.sent: list[tuple[int, Part]] = []

    async def send(self, target: int, message: Message) -> None:
        if not isinstance(message, Part):
            await self._later(target, message)
            return
        async with self._turns[target, message.key]:
            whole = replace(message, pieces=(memoryview(b"".join(message.pieces)),))
            self.sent.append((target, whole))
            await self._later(target, whole)

    async def _later(self, target: int, message: Message) -> None:
        await asyncio.sleep(self._random.random() * LONGEST_DELAY_SECONDS)
        self._subject.step()
        # Not its own lock: that keeps all messages to a node in order.
        await self._inner.send(target, message)

    def settle(self, before: Key) -> None:
        self._inner.settle(before)

    async def close(self) -> None:
        await self._inner.close()


class Engines:
    """A Subject: engines on a network in memory, of which a killed one never comes back."""

    def __init__(self, made: MemoryJob, course: Course) -> None:
        self.made = made
        self.step: Callable[[], None] = lambda: None
        self.instead: dict[tuple[int, int], torch.Tensor] = {}
        """What a rank brings to a collective, whatever it is to bring."""
        self.transports = []
        for node, engine in enumerate(made.engines):
            inner = made.network.attach(node, engine)
            transport = Disturbed(inner, self, course.seed * 100 + node)
            engine.connect(transport)
            self.transports.append(transport)

    def bring(self, rank: int, sequence: int, tensor: torch.Tensor) -> None:
        brought = self.instead.get((rank, sequence), tensor)
        self.made.bring(rank, sequence, brought, "sum")

    def kill(self, node: int) -> None:
        self.made.network.sever(node)

    def stop(self, node: int) -> None:
        error = StoppingError(f"the daemon of node {node} is stopping")
        self.made.engines[node].fail(error)

    def lose(self, rank: int) -> None:
        self.made.engine_of(rank).fail(LostError(f"rank {rank} is lost: killed"))

    async def outcome(self, rank: int, sequence: int, like: torch.Tensor) -> Outcome:
        heard, count = self.made.heard, cut(like.numel(), like.itemsize, CHUNK_BYTES).count
        keys = [(rank, Key(sequence, chunk)) for chunk in range(count)]

        def failure() -> aggregator_pb2.Failure | None:
            told = (heard.failures.get((rank, each)) for each in (sequence, 0))
            own, first = told
            over = first is not None and first.scope == Failure.SCOPE_JOB
            return own or (first if over else None)

        await heard.until(lambda: heard.results.keys() >= set(keys) or failure() is not None)
        if heard.results.keys() >= set(keys):
            data = bytearray(b"".join(heard.results[key] for key in keys))
            return torch.frombuffer(data, dtype=like.dtype)
        found = failure()
        assert found is not None
        return found

    def replay(self) -> None:
        """All parts that were ever sent arrive once more."""
        for node, transport in enumerate(self.transports):
            for target, part in list(transport.sent):
                self.made.engines[target].receive(node, part)


@asynccontextmanager
async def engines(course: Course) -> AsyncIterator[Engines]:
    """Fails, too, where rounds stay open; and `run` where tasks are left."""
    schedule = SCHEDULES[course.schedule]
    async with job(*course.shape, schedules=[schedule], slots=SLOTS) as made:
        yield Engines(made, course)
        await asyncio.sleep(1)
        assert [engine.headway.open_rounds for engine in made.engines] == [0] * len(
            course.shape
        )
