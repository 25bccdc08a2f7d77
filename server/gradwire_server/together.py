"""The status of a daemon of several processes, as one.

Every worker has a share of each job: of its tensors, links and time. Who asks for the status
wants to know of the whole.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from typing import TYPE_CHECKING, Any

import grpc

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import aggregator_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from google.protobuf.message import Message

log = logging.getLogger(__name__)

WORKER_SECONDS = 1.0
"""A worker that does not answer within this time is left out, with a word."""

_LINK: dict[str, tuple[str, ...]] = {
    "sum": (
        *("connections", "bytes_sent", "bytes_received", "sent_rate", "received_rate"),
        *("bandwidth", "usual_bandwidth", "queued_bytes", "reopened", "resent", "damaged"),
    ),
    "max": ("round_trip_seconds",),
    "min": ("connected",),
}
_RANK: dict[str, tuple[str, ...]] = {
    "sum": ("sequences", "last_arrivals"),
    "max": ("straggling", "steps", "step_seconds", "communication", "left"),
    "min": ("joined",),
}
_JOB: dict[str, tuple[str, ...]] = {
    "sum": ("rounds_done", "rounds_failed", "rounds_open", "ledger_seconds"),
    "max": ("attempt",),
}
_WAYS: dict[str, Callable[[Any, Any], Any]] = {"sum": operator.add, "max": max, "min": min}


async def ask(sockets: Iterable[str]) -> list[pb.StatusResponse]:
    """What the workers at these sockets say."""
    answers = await asyncio.gather(*map(_ask, sockets))
    return [answer for answer in answers if answer is not None]


async def _ask(socket: str) -> pb.StatusResponse | None:
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        status = aggregator_pb2_grpc.AggregatorStub(channel).Status
        try:
            answer: pb.StatusResponse = await status(pb.StatusRequest(), timeout=WORKER_SECONDS)
        except grpc.RpcError as error:
            log.warning("no status from the worker at %s: %s", socket, error.code().name)
            return None
    return answer


def add(whole: pb.StatusResponse, others: Sequence[pb.StatusResponse], events: int) -> None:
    """Add what workers say to what the first process does; of events, so many are kept."""
    for other in others:
        for job, more in _pairs(whole.jobs, other.jobs, "generation"):
            _add_job(job, more)
    said = [*whole.events, *(event for other in others for event in other.events)]
    said.sort(key=lambda event: event.time.ToNanoseconds())
    del whole.events[:]
    whole.events.extend(said[-events:])


def _add_job(whole: pb.JobStatus, part: pb.JobStatus) -> None:
    _add(whole, part, _JOB)
    whole.failure = whole.failure or part.failure
    for rank, more in _pairs(whole.ranks, part.ranks, "rank"):
        _add(rank, more, _RANK)
    for link, more in _pairs(whole.links, part.links, "node"):
        _add(link, more, _LINK)
        if link.silent.ToNanoseconds() < more.silent.ToNanoseconds():
            link.silent.CopyFrom(more.silent)
    for stage, more in _pairs(whole.stages, part.stages, "stage"):
        stage.seconds += more.seconds
    whole.stalled.extend(part.stalled)


def _pairs(wholes: Any, parts: Any, key: str) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    """What both have under the same key; what only one has is as it is."""
    known = {getattr(each, key): each for each in wholes}
    for part in parts:
        whole = known.get(getattr(part, key))
        if whole is None:
            wholes.add().CopyFrom(part)
        else:
            yield whole, part


def _add(whole: Message, part: Message, ways: dict[str, tuple[str, ...]]) -> None:
    for way, names in ways.items():
        for name in names:
            setattr(whole, name, _WAYS[way](getattr(whole, name), getattr(part, name)))
