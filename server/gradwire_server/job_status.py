"""A job in words for people and their tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from gradwire_server.job import Job


def job_status(job: Job) -> pb.JobStatus:
    """All that the daemon says of a job."""
    group, engine = job.group, job.engine
    status = pb.JobStatus(
        generation=group.picture.generation,
        world_size=group.picture.world_size,
        node=group.node,
        rounds_done=engine.headway.done,
        rounds_failed=engine.failed_count,
        rounds_open=engine.headway.open_rounds,
        failure=str(group.failure or ""),
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
    straggling = engine.straggling.scores()
    for rank in group.local_ranks:
        member = group.members.get(rank)
        status.ranks.add(
            rank=rank,
            host=member.host if member else "",
            pid=member.pid if member else 0,
            joined=member is not None,
            path=job.path(rank),
            sequences=engine.headway.sequences(rank),
            straggling=straggling[rank],
        )
    for peer, link in job.transport.status().items():
        address = group.picture.nodes[peer].address
        said = status.links.add(
            node=peer,
            address=address,
            connected=link.connected,
            bytes_sent=link.bytes_sent,
            bytes_received=link.bytes_received,
            connections=link.connections,
        )
        said.silent.FromMilliseconds(int(1000 * link.silent_seconds))
    return status
