"""Jobs whose daemons are killed, and come back knowing nothing.

The ranks are those of the product but for their threads: chunks in messages (_stream), and what
becomes of them when a daemon is lost (_recovery).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import torch

from exploring.engines import LONGEST_DELAY_SECONDS, SLOTS, Disturbed
from gradwire._collective import Collective
from gradwire._errors import LostError
from gradwire._order import reducing
from gradwire._recovery import Recovery
from gradwire._stream import Streaming
from gradwire_proto import wire
from gradwire_proto.progress import muster
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.reduce.choose import SCHEDULES
from gradwire_server.round import Key
from gradwire_server.seat import read_request
from gradwire_server.terms import Terms
from gradwire_server.testing_job import CHUNK_BYTES, TIMEOUT_SECONDS, WARN_SECONDS, MemoryJob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from exploring.course import Course
    from exploring.engines import Outcome
    from gradwire_proto.nonfinite import Finding
    from gradwire_server.engine import Engine


class Parked(Exception):  # noqa: N818 - no error
    """A rank waits until the progress of all is known."""


class Line:
    """See _channel.Line: to an engine, without a network."""

    daemon = "the daemon"

    def __init__(self, engine: Engine, rank: int) -> None:
        self._engine = engine
        self._rank = rank
        self.responses: deque[pb.ReduceResponse] = deque()

    def send(self, request: pb.ReduceRequest, payload: memoryview) -> None:
        data = wire.join(request, payload)
        heard, chunk = wire.split(data, pb.ReduceRequest)
        if heard.HasField("spec"):
            self._engine.contribute(self._rank, *read_request(heard, chunk))
        else:
            before = Key(heard.settled_sequence, heard.settled_chunk)
            self._engine.settling.hold(self._rank, before)

    def receive(self) -> tuple[pb.ReduceResponse, memoryview]:
        response = self.responses.popleft()
        return response, memoryview(response.payload)

    def close(self) -> None: ...


class Future:
    """See _carrier.Outcome."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self.outcome: torch.Tensor | Exception | None = None

    def done(self) -> bool:
        return self.settled.is_set()

    def settle(self, outcome: Callable[[], torch.Tensor] | Exception) -> None:
        self.outcome = outcome if isinstance(outcome, Exception) else outcome()
        self.settled.set()


class Rank:
    """One rank, over all attempts. Also its Seat: see _recovery."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempt = 0
        self.recovery = Recovery(self, number)
        self.open: dict[int, Collective] = {}
        self.progress: pb.Progress | None = None
        self.everybody: list[pb.Progress] = []
        self.replay: Collective | None = None
        self.brought = 0
        self.next = 0
        self.futures: list[Future] = []

    def sit(self, engine: Engine) -> None:
        self.line = Line(engine, self.number)
        self.carrier = Streaming(self.line, self.number, CHUNK_BYTES, SLOTS, resumes=True)
        engine.settling.hold(self.number, Key(0, 0))

    def bring(self, tensor: torch.Tensor) -> None:
        future = Future()
        self.futures.append(future)
        order = reducing(tensor, [tuple(tensor.shape)], "sum", 1.0)
        collective = Collective(self.next, order, future)
        self.next += 1
        self.brought += 1
        self.open[collective.sequence] = collective
        if self.replay is None and self.progress is None:
            self.carrier.put(collective)
            self.work()

    def hear(self, response: pb.ReduceResponse) -> None:
        self.line.responses.append(response)
        assert self.carrier.receive() is None, response
        self.work()

    def work(self) -> None:
        while (done := self.carrier.advance()) is not False:
            if done is self.replay and self.replay is not None:
                self.go_on(self.replay)
            elif isinstance(done, Collective):
                self.complete(done)

    def complete(self, collective: Collective) -> None:
        del self.open[collective.sequence]
        collective.future.settle(collective.finish)

    def put_down(self) -> None:
        """As ResumingPipeline does."""
        for collective in self.carrier.drain():
            if collective is not self.replay:
                self.complete(collective)
        self.recovery.keep(self.carrier)
        self.replay = None
        if not self.attempt:
            for collective in self.open.values():
                collective.sequence += 1
            self.open = {each.sequence: each for each in self.open.values()}
            self.next += 1
        self.everybody = []
        try:
            self.ask()
        except Parked:
            return
        raise AssertionError("nobody knows of the others yet")

    def ask(self) -> None:
        first = min(self.open, default=self.next)
        lost = LostError("killed")
        self.recovery.rejoin(0, first - 1, self.open.get(first), lost)

    def rejoin(
        self, attempt: int, progress: pb.Progress, lost: LostError
    ) -> tuple[Streaming, list[pb.Progress]]:
        """See _recovery.Seat."""
        progress.rank = self.number
        self.progress = progress
        if not self.everybody:
            raise Parked
        return self.carrier, self.everybody

    def come_back(self, everybody: list[pb.Progress], attempt: int) -> None:
        self.everybody, self.attempt = everybody, attempt
        self.ask()
        self.progress = None
        self.replay = self.recovery.begin(self.carrier, self.open)
        self.work()

    def go_on(self, replay: Collective) -> None:
        complete = self.recovery.apply(replay, self.carrier, self.open)
        for collective in complete:
            self.complete(collective)
        for _, collective in sorted(self.open.items()):
            self.carrier.put(collective)
        self.replay = None


class Reviving:
    """A Subject; see engines. `kill` may come while the job is taken up again, too."""

    def __init__(self, course: Course) -> None:
        self.step: Callable[[], None] = lambda: None
        self._course = course
        self._random = random.Random(course.seed)  # noqa: S311 - delays, not a secret
        self._attempt = 0
        self._gone: set[int] = set()
        self._ending: asyncio.Task[None] | None = None
        self._closing: list[asyncio.Task[None]] = []
        self._last: dict[tuple[int, int], float] = {}
        self.ranks = [Rank(number) for number in range(course.world)]
        self.made = self._make()

    def _make(self) -> MemoryJob:
        course = self._course
        terms = Terms(
            CHUNK_BYTES,
            SLOTS,
            TIMEOUT_SECONDS,
            WARN_SECONDS,
            SCHEDULES[course.schedule],
            resume_seconds=30.0,
        )
        seed = 100 * course.seed + self._attempt
        made = MemoryJob([terms] * len(course.shape), course.shape, seed, ranks=_Told(self))
        for node, engine in enumerate(made.engines):
            inner = made.network.attach(node, engine)
            engine.connect(Disturbed(inner, self, seed + node))
        for rank in self.ranks:
            rank.sit(made.engine_of(rank.number))
        return made

    # -- Subject

    def bring(self, rank: int, sequence: int, tensor: torch.Tensor) -> None:
        assert self.ranks[rank].brought == sequence
        self.ranks[rank].bring(tensor)

    def kill(self, node: int) -> None:
        if node in self._gone:
            return
        self._gone.add(node)
        self.made.engines[node].suspend()
        self.made.network.cut(node)
        if self._ending is None:
            self._ending = asyncio.create_task(self._take_up_again())

    async def outcome(self, rank: int, sequence: int, like: torch.Tensor) -> Outcome:
        future = self.ranks[rank].futures[sequence]
        await future.settled.wait()
        assert isinstance(future.outcome, torch.Tensor), future.outcome
        return future.outcome

    # -- attempts

    async def _take_up_again(self) -> None:
        """The others hear of it one after the other, and get results until then."""
        before = self.made
        for node in self._random.sample(
            range(len(self._course.shape)), len(self._course.shape)
        ):
            await asyncio.sleep(self._random.random() * LONGEST_DELAY_SECONDS)
            before.engines[node].suspend()
            for number in self._course.places[node]:
                self.ranks[number].put_down()
        self._closing.append(asyncio.create_task(before.close()))
        self._attempt += 1
        self._gone, self._ending = set(), None
        self.made = self._make()
        everybody = [rank.progress for rank in self.ranks if rank.progress is not None]
        assert len(everybody) == len(self.ranks)
        for engine in self.made.engines:
            engine.resume(muster(everybody))
        for rank in self.ranks:
            rank.come_back(everybody, self._attempt)

    def tell(self, rank: int, response: pb.ReduceResponse) -> None:
        """What a daemon says takes a while; it is lost with the daemon, or comes too late."""
        delay = self._random.random() * LONGEST_DELAY_SECONDS
        made = self.made

        def arrive() -> None:
            node = made.picture.node_of(rank)
            mortal = node in self._gone and made is self.made
            if made is self.made and not mortal and self.ranks[rank].progress is None:
                self.ranks[rank].hear(response)

        self._order(rank, delay, arrive)

    def _order(self, rank: int, delay: float, arrive: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        at = max(loop.time() + delay, self._last.get((self._attempt, rank), 0.0))
        self._last[self._attempt, rank] = at
        loop.call_at(at, arrive)

    async def close(self) -> None:
        await asyncio.gather(*self._closing)
        await self.made.close()


class _Told:
    """See engine.Ranks."""

    def __init__(self, job: Reviving) -> None:
        self._job = job

    def result(
        self, rank: int, key: Key, result: memoryview, found: Finding | None = None
    ) -> None:
        response = pb.ReduceResponse(
            sequence=key.sequence, chunk=key.chunk, payload=bytes(result)
        )
        self._job.tell(rank, response)

    def failed(self, rank: int, sequence: int, failure: pb.Failure) -> None:
        raise AssertionError(f"rank {rank} is told that {sequence} failed: {failure.reason}")


@asynccontextmanager
async def reviving(course: Course) -> AsyncIterator[Reviving]:
    """Fails, too, where rounds stay open; and `run` where tasks are left."""
    subject = Reviving(course)
    try:
        yield subject
        await asyncio.sleep(1)
        assert not any(engine.headway.open_rounds for engine in subject.made.engines)
    finally:
        await subject.close()
