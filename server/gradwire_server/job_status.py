"""A job in words for people and their tools."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from gradwire_server.job import Job


def job_status(job: Job) -> pb.JobStatus:
    """All that the daemon says of a job. On the event loop."""
    group, engine = job.group, job.engine
    status = pb.JobStatus(
        generation=group.picture.generation,
        world_size=group.picture.world_size,
        node=group.node,
        rounds_done=engine.headway.done,
        rounds_failed=engine.failed_count,
        rounds_open=engine.headway.open_rounds,
        failure=str(group.failure or ""),
        attempt=job.attempt,
    )
    for node in group.picture.nodes:
        status.nodes.add(
            id=node.id,
            address=node.address,
            host=node.host,
            ranks=node.ranks,
            addresses=node.addresses,
            bandwidth=node.bandwidth,
        )
    _add_ranks(status, job)
    _add_links(status, job)
    _add_stalled(status, job)
    totals = engine.accounts.totals
    for stage, seconds in totals.seconds.items():
        status.stages.add(stage=stage, seconds=seconds)
    status.ledger_seconds = totals.whole
    return status


def _add_ranks(status: pb.JobStatus, job: Job) -> None:
    group, engine = job.group, job.engine
    straggling, paces = engine.straggling.scores(), engine.accounts.paces()
    departed = group.departed
    for rank in group.local_ranks:
        member, lately = group.members.get(rank), engine.accounts.lately(rank)
        status.ranks.add(
            rank=rank,
            host=member.host if member else "",
            pid=member.pid if member else 0,
            joined=member is not None,
            left=rank in departed,
            path=job.path(rank),
            sequences=engine.headway.sequences(rank),
            straggling=straggling[rank],
            last_arrivals=engine.straggling.last_arrivals[rank],
            steps=paces[rank].steps,
            step_seconds=lately.step_seconds,
            communication=lately.communication,
        )


def _add_links(status: pb.JobStatus, job: Job) -> None:
    for peer, link in job.transport.status().items():
        said = status.links.add(
            node=peer,
            address=job.group.picture.nodes[peer].address,
            connected=link.connected,
            bytes_sent=link.bytes_sent,
            bytes_received=link.bytes_received,
            connections=link.connections,
            sent_rate=link.sent_rate,
            received_rate=link.received_rate,
            bandwidth=link.bandwidth or 0.0,
            usual_bandwidth=link.usual_bandwidth or 0.0,
            round_trip_seconds=link.round_trip_seconds or 0.0,
            queued_bytes=link.queued_bytes,
            reopened=link.reopened,
            resent=link.resent,
            damaged=link.damaged,
        )
        said.silent.FromMilliseconds(int(1000 * link.silent_seconds))


def _add_stalled(status: pb.JobStatus, job: Job) -> None:
    now = asyncio.get_running_loop().time()
    for each in job.engine.lateness.stalled:
        status.stalled.add(
            sequence=each.sequence,
            seconds=max(0.0, now - each.since),
            ranks=each.ranks,
            whom=each.whom,
        )
