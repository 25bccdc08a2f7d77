"""Traces of several daemons as one file that Perfetto and Chrome open.

The Trace Event Format: "X" events with a beginning and a duration, in microseconds, and "M"
events with the names of processes and threads. Spans of one thread must lie one after the other
or one in the other; rounds overlap, so they are spread over as many threads as they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire_proto.diary import read_deeds
from gradwire_proto.text import printable
from gradwire_proto.trace_clocks import shifts
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_ARGS = ("round", "chunk", "peer", "bytes")


class _Process(NamedTuple):
    """Of the trace: a daemon, or a rank."""

    host: str
    pid: int
    rank: int
    """Negative: a daemon."""
    node_id: str = ""
    """Of a daemon: in containers several may have the same pid."""


class _Drawn(NamedTuple):
    """A span on the one time line."""

    start: int
    end: int
    span: pb.TraceSpan


def to_json(
    traces: Sequence[Iterable[pb.TraceResponse]], missing: Sequence[str] = ()
) -> dict[str, Any]:
    """One object for json.dump, from what each daemon has answered, the first one's time first.

    `missing`: what could not be had, in words. Raises ValueError for a trace without a source.
    """
    gathered = [_gather(parts) for parts in traces]
    sources = [source for source, _, _ in gathered]
    ahead = shifts(sources)
    drawing = _Drawing(sources)
    start = min(
        (
            span.start_nanoseconds - (shift or 0)
            for (_, spans, _), shift in zip(gathered, ahead, strict=True)
            for span in spans
        ),
        default=0,
    )
    for (source, spans, _), shift in zip(gathered, ahead, strict=True):
        drawing.add(source, spans, start + (shift or 0))
    return {
        "traceEvents": drawing.events(),
        "displayTimeUnit": "ms",
        "metadata": {
            "producer": "gradwire",
            "begin-unix-nanoseconds": start + sources[0].epoch_nanoseconds if sources else 0,
            "daemons": [
                {
                    "node_id": source.node_id,
                    "host": source.host,
                    "clock_ahead_nanoseconds": shift,
                    "spans": len(spans),
                    "dropped": dropped,
                }
                for (source, spans, dropped), shift in zip(gathered, ahead, strict=True)
            ],
            "missing": [*missing, *_unaligned(sources, ahead)],
        },
    }


def _gather(
    parts: Iterable[pb.TraceResponse],
) -> tuple[pb.TraceSource, list[pb.TraceSpan], int]:
    source: pb.TraceSource | None = None
    spans: list[pb.TraceSpan] = []
    dropped = 0
    for part in parts:
        if part.HasField("source"):
            source = part.source
        spans.extend(part.spans)
        spans.extend(span for deeds in part.deeds for span in _spans(deeds))
        dropped = max(dropped, part.dropped)
    if source is None:
        raise ValueError("a trace that does not say whose it is")
    return source, spans, dropped


def _spans(deeds: pb.TraceDeeds) -> Iterator[pb.TraceSpan]:
    for deed in read_deeds(deeds.words):
        yield pb.TraceSpan(
            track="tensors",
            rank=deeds.rank,
            stage=deed.stage,
            # A rank may have written anything there.
            start_nanoseconds=max(0, deed.begun),
            end_nanoseconds=max(0, deed.begun, deed.ended),
            generation=deeds.generation,
            round=deed.sequence,
            chunk=deed.chunk,
        )


def _unaligned(sources: Sequence[pb.TraceSource], ahead: Sequence[int | None]) -> list[str]:
    return [
        f"the clock of the daemon {source.node_id} on {printable(source.host)} could not be"
        " compared with the first one's: its times are as it says them"
        for source, shift in zip(sources, ahead, strict=True)
        if shift is None
    ]


class _Drawing:
    """Who is which process and thread."""

    def __init__(self, sources: Sequence[pb.TraceSource]) -> None:
        self._names: dict[_Process, str] = {}
        self._daemons = {
            source.node_id: _Process(source.host, source.pid, -1, source.node_id)
            for source in sources
        }
        for number, source in _in_order(sources):
            self._name(self._daemons[source.node_id], f"daemon of node {number}", source.host)
        self._ranks = {
            (job.generation, rank.rank): _Process(rank.host, rank.pid, rank.rank)
            for source in sources
            for job in source.jobs
            for rank in job.ranks
        }
        for rank in sorted(set(self._ranks.values()), key=lambda each: (each.rank, each)):
            self._name(rank, f"rank {rank.rank}", rank.host)
        self._tracks: dict[tuple[_Process, str], list[_Drawn]] = {}

    def _name(self, process: _Process, name: str, host: str) -> None:
        if process in self._names:
            return
        named = unique = f"{name} on {printable(host)} (pid {process.pid})"
        taken, number = set(self._names.values()), 1
        while unique in taken:
            number += 1
            unique = f"{named}, {number}"
        self._names[process] = unique

    def add(self, source: pb.TraceSource, spans: Iterable[pb.TraceSpan], start: int) -> None:
        """What one daemon says; `start`: what its clock read when the time line begins."""
        for span in spans:
            process = self._daemons[source.node_id]
            if span.HasField("rank"):
                key = span.generation, span.rank
                process = self._ranks.get(key) or _Process(source.host, 0, span.rank)
                self._name(process, f"rank {span.rank}", source.host)
            drawn = _Drawn(span.start_nanoseconds - start, span.end_nanoseconds - start, span)
            self._tracks.setdefault((process, span.track), []).append(drawn)

    def events(self) -> list[dict[str, Any]]:
        """All of them."""
        events: list[dict[str, Any]] = []
        threads: dict[int, int] = {}
        pids = {process: pid for pid, process in enumerate(self._names)}
        for process, pid in pids.items():
            events.append(_metadata(pid, 0, "process_name", name=self._names[process]))
            events.append(_metadata(pid, 0, "process_sort_index", sort_index=pid))
        for (process, track), drawn in sorted(
            self._tracks.items(), key=lambda each: (pids[each[0][0]], each[0][1])
        ):
            pid = pids[process]
            for place, lane in enumerate(_lanes(drawn)):
                thread = threads[pid] = threads.get(pid, 0) + 1
                name = f"{track} {place + 1}" if place else track
                events.append(_metadata(pid, thread, "thread_name", name=name))
                events.append(_metadata(pid, thread, "thread_sort_index", sort_index=thread))
                events.extend(_event(each, pid, thread) for each in lane)
        return events


def _in_order(sources: Sequence[pb.TraceSource]) -> list[tuple[int, pb.TraceSource]]:
    """Each with its node's number, in the order of these."""
    numbers = [source.jobs[0].node if source.jobs else 0 for source in sources]
    pairs = zip(numbers, sources, strict=True)
    return sorted(pairs, key=lambda each: each[0])


def _lanes(drawn: list[_Drawn]) -> list[list[_Drawn]]:
    """So that in each lane spans lie one after the other, or one in the other.

    What is of one chunk stays together, as long as it can.
    """
    lanes: list[list[_Drawn]] = []
    ends: list[int] = []
    groups: dict[tuple[object, ...], list[_Drawn]] = {}
    for each in drawn:
        groups.setdefault(_chunk(each.span), []).append(each)
    nested = [part for group in groups.values() for part in _nested(group)]
    for group in sorted(nested, key=lambda spans: spans[0].start):
        end = max(each.end for each in group)
        free = next((at for at, last in enumerate(ends) if last <= group[0].start), None)
        if free is None:
            lanes.append([])
            ends.append(0)
            free = len(lanes) - 1
        lanes[free].extend(group)
        ends[free] = end
    return lanes


def _chunk(span: pb.TraceSpan) -> tuple[object, ...]:
    if not span.HasField("round"):
        return (span.start_nanoseconds, span.end_nanoseconds, span.stage)
    return (span.generation, span.round, span.chunk, span.peer)


def _nested(group: list[_Drawn]) -> list[list[_Drawn]]:
    """One group, or several where its spans overlap without one lying in the other."""
    left = sorted(group, key=lambda each: (each.start, -each.end))
    parts: list[list[_Drawn]] = []
    while left:
        part: list[_Drawn] = []
        others: list[_Drawn] = []
        open_: list[int] = []
        for each in left:
            while open_ and open_[-1] <= each.start:
                open_.pop()
            if open_ and each.end > open_[-1]:
                others.append(each)
                continue
            open_.append(each.end)
            part.append(each)
        parts.append(part)
        left = others
    return parts


def _event(drawn: _Drawn, pid: int, thread: int) -> dict[str, Any]:
    span = drawn.span
    args: dict[str, Any] = {"generation": span.generation} if span.generation else {}
    args.update({name: getattr(span, name) for name in _ARGS if span.HasField(name)})
    return {
        "name": span.stage,
        "cat": span.track,
        "ph": "X",
        "ts": drawn.start / 1000,
        "dur": (drawn.end - drawn.start) / 1000,
        "pid": pid,
        "tid": thread,
        "args": args,
    }


def _metadata(pid: int, thread: int, kind: str, **args: str | int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": thread, "args": args}
