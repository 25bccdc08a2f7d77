"""All jobs of this daemon: one attempt of each generation."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from gradwire_server.errors import (
    BehindError,
    LimitError,
    OverError,
    ReductionError,
    RefusedError,
)
from gradwire_server.group import Group
from gradwire_server.logs import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_proto.v1 import aggregator_pb2 as pb
    from gradwire_server.feedback import Feedback
    from gradwire_server.group import Picture
    from gradwire_server.job import Job

log = logging.getLogger(__name__)

COLLECT_SECONDS = 0.3

MOST_OVER = 256
"""Generations that failed are remembered, so that nobody comes back for one."""


MOST_AHEAD = 1000
"""Attempts by which somebody may be ahead: a wild number would have the last word for ever."""


class Jobs:
    """All jobs of this daemon, by generation."""

    def __init__(
        self, make: Callable[[Group, pb.JoinRequest, Feedback | None], Job], most: int
    ) -> None:
        """`make` begins an attempt, with what an earlier one has lost on lossy wires. There are
        at most so many generations at a time.
        """
        self._make = make
        self._most = most
        self._jobs: dict[str, Job] = {}
        self._ends: dict[Job, asyncio.Task[None]] = {}
        self._over: OrderedDict[str, ReductionError] = OrderedDict()
        self._news = asyncio.Condition()
        self._entering = asyncio.Lock()
        self.served = 0
        self._stopping: ReductionError | None = None

    @property
    def all(self) -> list[Job]:
        """Jobs that have not ended."""
        return list(self._jobs.values())

    async def enter(self, picture: Picture, request: pb.JoinRequest) -> Job:
        """The job of this generation, made by the first rank that comes.

        Raises BehindError where the rank is to come again with a later attempt, RefusedError
        where the generation is over.
        """
        # One at a time: an earlier attempt is put away before the next one begins.
        async with self._entering:
            if self._stopping is not None:
                raise self._stopping
            job = self._jobs.get(picture.generation)
            if job is None and (over := self._over.get(picture.generation)) is not None:
                raise RefusedError(f"generation {picture.generation} is over: {over}")
            if job is not None and job.group.failure is None:
                _check_attempt(job, request.attempt)
                job.outrun(request.attempt)
                if request.attempt < job.latest:
                    raise BehindError(job.latest)
            if job is not None and not job.is_outrun:
                return job
            # The rank that comes may be called off: then the attempt begins all the same, and
            # ends if nobody else comes.
            beginning = asyncio.create_task(self._begin(picture, request, job))
            return await asyncio.shield(beginning)

    async def _begin(
        self, picture: Picture, request: pb.JoinRequest, before: Job | None
    ) -> Job:
        """Begin an attempt, after the one before it was put away."""
        group = Group(picture, request.node)
        group.check_local(request.rank)
        feedback = None
        if before is None and len(self._jobs) >= self._most:
            raise LimitError(
                f"{len(self._jobs)} generations are here already, which is all that this daemon"
                " takes; wait for one to end, or raise its --max-jobs (GRADWIRE_MAX_JOBS)"
            )
        if before is not None:
            await self._put_away(before)
            feedback = before.feedback
        job = self._make(group, request, feedback)
        job.expect_ranks()
        self._jobs[picture.generation] = job
        self.served += 1
        self._ends[job] = asyncio.create_task(self._end(job))
        async with self._news:
            self._news.notify_all()
        return job

    async def await_attempt(self, generation: str, attempt: int) -> Job:
        """The job of this generation, at this attempt or a later one, as soon as its first
        local rank has come. Raises OverError where it has failed here.
        """
        async with self._news:
            while True:
                job, over = self._jobs.get(generation), self._over.get(generation)
                if job is not None:
                    over = job.group.failure
                if over is not None:
                    raise OverError(f"the job is over: {over}")
                if job is not None and job.attempt >= attempt:
                    return job
                if job is not None:
                    _check_attempt(job, attempt)
                    job.outrun(attempt)
                await self._news.wait()

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
        for end in self._ends.values():
            end.cancel()
        await asyncio.gather(*map(self._finish, self.all))

    async def _put_away(self, job: Job) -> None:
        """This attempt is over; the next one goes on with what it has lost."""
        end = self._ends.pop(job)
        end.cancel()
        await asyncio.gather(end, return_exceptions=True)
        await job.close()
        self._jobs.pop(job.group.picture.generation, None)

    async def _end(self, job: Job) -> None:
        generation = job.group.picture.generation
        await job.ended.wait()
        await job.engine.drain()
        await self._finish(job)
        self._ends.pop(job, None)
        # A job is a web of callbacks: its arena and its connections would stay until Python
        # looks. Its peers' streams and its ranks' lines, which point to it, end within moments.
        asyncio.get_running_loop().call_later(COLLECT_SECONDS, gc.collect)
        async with self._news:
            self._news.notify_all()
        log.info("generation %s has ended", generation[:8], extra=about(generation))

    async def _finish(self, job: Job) -> None:
        """It is over for good: once its memory is gone, nobody finds it here."""
        generation = job.group.picture.generation
        if job.group.failure is not None:
            self._over[generation] = job.group.failure
            while len(self._over) > MOST_OVER:
                self._over.popitem(last=False)
        await job.close()
        job.feedback.close()
        self._jobs.pop(generation, None)


def _check_attempt(job: Job, attempt: int) -> None:
    """Raise RefusedError for an attempt to which no honest job has come meanwhile."""
    if attempt > job.latest + MOST_AHEAD:
        raise RefusedError(
            f"expected attempt {job.latest}, or one of the next {MOST_AHEAD}, got {attempt}"
        )
