"""The shape of `gradwire status --json`: the messages' own names, numbers as numbers. Pure.

Not protobuf's JSON mapping, which writes 64-bit numbers as strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb


def to_dict(answer: pb.StatusResponse) -> dict[str, object]:
    """All of a daemon's answer."""
    return {
        "version": answer.version,
        "node_id": answer.node_id,
        "address": answer.address,
        "socket": answer.socket,
        "metrics": answer.metrics,
        "uptime_seconds": answer.uptime.seconds + answer.uptime.nanos / 1e9,
        "jobs": [_job(job) for job in answer.jobs],
        "events": [_event(event) for event in answer.events],
    }


def _job(job: pb.JobStatus) -> dict[str, object]:
    return {
        "generation": job.generation,
        "world_size": job.world_size,
        "node": job.node,
        "nodes": [_node(node) for node in job.nodes],
        "ranks": [_rank(rank) for rank in job.ranks],
        "links": [_link(link) for link in job.links],
        "rounds_done": job.rounds_done,
        "rounds_open": job.rounds_open,
        "rounds_failed": job.rounds_failed,
        "failure": job.failure,
        "attempt": job.attempt,
        "stages": {each.stage: each.seconds for each in job.stages},
        "ledger_seconds": job.ledger_seconds,
        "stalled": [_stalled(each) for each in job.stalled],
    }


def _stalled(round_: pb.StalledRound) -> dict[str, object]:
    return {
        "sequence": round_.sequence,
        "seconds": round_.seconds,
        "ranks": list(round_.ranks),
        "whom": round_.whom,
    }


def _event(event: pb.Event) -> dict[str, object]:
    return {
        "time": event.time.seconds + event.time.nanos / 1e9,
        "level": event.level,
        "text": event.text,
        "generation": event.generation,
        "round": event.round if event.HasField("round") else None,
        "ranks": list(event.ranks),
    }


def _node(node: pb.Node) -> dict[str, object]:
    return {
        "id": node.id,
        "address": node.address,
        "addresses": list(node.addresses),
        "bandwidth": node.bandwidth,
        "host": node.host,
        "ranks": list(node.ranks),
    }


def _rank(rank: pb.RankStatus) -> dict[str, object]:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "joined": rank.joined,
        "left": rank.left,
        "path": rank.path,
        "sequences": rank.sequences,
        "straggling": rank.straggling,
        "last_arrivals": rank.last_arrivals,
        "steps": rank.steps,
        "step_seconds": rank.step_seconds,
        "communication": rank.communication,
    }


def _link(link: pb.LinkStatus) -> dict[str, object]:
    return {
        "node": link.node,
        "address": link.address,
        "connected": link.connected,
        "connections": link.connections,
        "silent_seconds": link.silent.seconds + link.silent.nanos / 1e9,
        "bytes_sent": link.bytes_sent,
        "bytes_received": link.bytes_received,
        "sent_rate": link.sent_rate,
        "received_rate": link.received_rate,
        "bandwidth": link.bandwidth,
        "usual_bandwidth": link.usual_bandwidth,
        "round_trip_seconds": link.round_trip_seconds,
        "queued_bytes": link.queued_bytes,
        "reopened": link.reopened,
        "resent": link.resent,
        "damaged": link.damaged,
    }
