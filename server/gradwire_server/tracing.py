"""What daemon and ranks are doing, recorded while somebody asks for it.

Whoever has something to tell looks at `on` first: while nobody listens, that is all it costs.
Times are those of time.monotonic_ns, which all processes of a host read alike.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from gradwire_proto.diary import DEED_BYTES
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Unpack

    from gradwire_server.group import Group
    from gradwire_server.jobs import Jobs
    from gradwire_server.transport.base import Part

MOST_SPANS = 1 << 16
"""That wait for a listener; of more, the oldest are lost."""

PART_SPANS = 4000
"""In one message: some 400 KB."""

MOST_LISTENERS = 8

MOST_JOBS = 1024
"""Of more, the first are forgotten."""


class Track(NamedTuple):
    """What spans are drawn beside one another: of one rank, or of the daemon."""

    name: str
    rank: int | None = None


class About(TypedDict, total=False):
    """What a span may be about."""

    generation: str
    round: int
    chunk: int
    peer: int
    bytes: int


class Spans(NamedTuple):
    """What took time, of one thing: stages, each with its begin and its end."""

    track: Track
    stages: Sequence[tuple[str, int, int]]
    about: About

    @property
    def weight(self) -> int:
        """How many."""
        return len(self.stages)

    def write(self, part: pb.TraceResponse) -> None:
        """Into the message that says so."""
        for stage, begun, ended in self.stages:
            part.spans.add(
                track=self.track.name,
                stage=stage,
                # A peer may have said when it was.
                start_nanoseconds=max(0, begun),
                end_nanoseconds=max(0, begun, ended),
                rank=self.track.rank,
                **self.about,
            )


class Deeds(NamedTuple):
    """What a rank has noted; see TraceDeeds."""

    generation: str
    rank: int
    words: bytes

    @property
    def weight(self) -> int:
        """How many."""
        return len(self.words) // DEED_BYTES

    def write(self, part: pb.TraceResponse) -> None:
        """Into the message that says so."""
        part.deeds.add(generation=self.generation, rank=self.rank, words=self.words)


class Listener:
    """One trace under way."""

    def __init__(self, most_spans: int = MOST_SPANS) -> None:
        self._most = most_spans
        self._waiting: deque[Spans | Deeds] = deque()
        self._count = 0
        """Spans in these."""
        self._dropped = 0
        self._jobs: dict[str, pb.TraceJob] = {}

    def hear(self, spans: Spans | Deeds) -> None:
        """Some more."""
        self._waiting.append(spans)
        self._count += spans.weight
        while self._count > self._most:
            self._dropped += self._next().weight

    def _next(self) -> Spans | Deeds:
        spans = self._waiting.popleft()
        self._count -= spans.weight
        return spans

    def meet(self, jobs: Iterable[pb.TraceJob]) -> None:
        """What is known of the jobs by now; those that end are remembered."""
        for job in jobs:
            known = self._jobs.setdefault(job.generation, job)
            # Clocks and ranks are known for a part of a job's life only.
            merged = pb.TraceJob()
            merged.CopyFrom(job)
            if not job.offsets:
                merged.offsets.extend(known.offsets)
            if not job.ranks:
                merged.ranks.extend(known.ranks)
            self._jobs[job.generation] = merged
        while len(self._jobs) > MOST_JOBS:
            del self._jobs[next(iter(self._jobs))]

    def take(self) -> pb.TraceResponse:
        """What has come since the last time; a part of it, where it is much."""
        part = pb.TraceResponse()
        before = self._count
        while self._waiting and before - self._count < PART_SPANS:
            self._next().write(part)
        part.dropped = self._dropped
        return part

    def source(self, node_id: str) -> pb.TraceSource:
        """Whose it is."""
        return pb.TraceSource(
            node_id=node_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            clock=_clock(),
            epoch_nanoseconds=time.time_ns() - time.monotonic_ns(),
            jobs=self._jobs.values(),
        )


class Recorder:
    """Tells whoever listens. On the event loop."""

    def __init__(self) -> None:
        self.on = False
        """Somebody listens: else there is no need to record anything."""
        self._listeners: tuple[Listener, ...] = ()

    def record(
        self, track: Track, stages: Sequence[tuple[str, int, int]], **about: Unpack[About]
    ) -> None:
        """Stages of one thing took time, from nanosecond to nanosecond."""
        for listener in self._listeners:
            listener.hear(Spans(track, stages, about))

    def pass_on(self, deeds: Deeds) -> None:
        """See Deeds."""
        for listener in self._listeners:
            listener.hear(deeds)

    @contextlib.contextmanager
    def listening(self, most_spans: int = MOST_SPANS) -> Iterator[Listener]:
        """Several may at a time, and hear the same. Raises LimitError where they are too many:
        each takes memory, and time of every round.
        """
        if len(self._listeners) >= MOST_LISTENERS:
            raise LimitError(
                f"{MOST_LISTENERS} traces are being recorded already, which is all that a"
                " daemon does at a time; wait for one to end"
            )
        listener = Listener(most_spans)
        self._set((*self._listeners, listener))
        try:
            yield listener
        finally:
            self._set(tuple(each for each in self._listeners if each is not listener))

    def _set(self, listeners: tuple[Listener, ...]) -> None:
        self._listeners, self.on = listeners, bool(listeners)


def traced_jobs(jobs: Jobs) -> Iterator[pb.TraceJob]:
    """What is known of the jobs that are there now."""
    for job in jobs.all:
        group = job.group
        traced = pb.TraceJob(
            generation=group.picture.generation,
            node=group.node,
            nodes=[node.id for node in group.picture.nodes],
        )
        for peer, offset in job.transport.clock_offsets().items():
            traced.offsets.add(node=peer, nanoseconds=offset)
        for member in group.members.values():
            traced.ranks.add(rank=member.rank, host=member.host, pid=member.pid)
        yield traced


def record_share(recorder: Recorder, group: Group, source: int, part: Part) -> None:
    """A share has come from another node: how long it was on its way, where that is known."""
    if part.left_at is None or not part.came_at:
        return
    recorder.record(
        Track(f"from node {source}"),
        # Clocks are compared to within half a round trip: none arrives before it left.
        [("wire", round(min(part.left_at, part.came_at) * 1e9), round(part.came_at * 1e9))],
        generation=group.picture.generation,
        round=part.key.sequence,
        chunk=part.key.chunk,
        peer=source,
        bytes=part.size,
    )


def _clock() -> str:
    """This boot of this host; a time namespace may shift what it reads."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        return f"{boot}/{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        return boot
