"""What the workers of a daemon say of themselves, as one status."""

from __future__ import annotations

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.together import add


def answer(number: int, *, failure: str = "", silent: int = 0) -> pb.StatusResponse:
    """Of a worker, whose figures are those of the first one times its number."""
    job = pb.JobStatus(generation="g", world_size=3, rounds_done=10 * number, attempt=1)
    job.failure = failure
    job.ranks.add(rank=0, joined=True, pid=7, sequences=5 * number, straggling=0.1 * number)
    job.ranks.add(rank=1, joined=number == 1, left=number > 1, steps=4)
    link = job.links.add(node=1, connected=number == 1, bytes_sent=100 * number, connections=2)
    link.bandwidth, link.round_trip_seconds = 1e9 * number, 0.001 * number
    link.silent.FromSeconds(silent)
    job.stages.add(stage="wire", seconds=number)
    job.stalled.add(sequence=number)
    said = pb.StatusResponse(node_id="n", jobs=[job])
    said.events.add(text=f"of worker {number}").time.FromSeconds(100 - number)
    return said


def test_amounts_are_added_and_the_worst_state_is_told() -> None:
    whole = answer(1)
    add(whole, [answer(2, failure="it broke", silent=3), answer(3, silent=1)], 10)
    (job,) = whole.jobs
    assert (job.rounds_done, job.attempt, job.failure) == (60, 1, "it broke")
    first, second = job.ranks
    assert (first.pid, first.sequences, first.joined) == (7, 30, True)
    assert round(first.straggling, 9) == 0.3
    assert (second.joined, second.left, second.steps) == (False, True, 4)
    (link,) = job.links
    assert (link.bytes_sent, link.connections, link.connected) == (600, 6, False)
    assert (link.bandwidth, link.round_trip_seconds) == (6e9, 0.003)
    assert link.silent.seconds == 3
    assert [(each.stage, each.seconds) for each in job.stages] == [("wire", 6)]
    assert [each.sequence for each in job.stalled] == [1, 2, 3]


def test_the_latest_events_of_all_are_kept_in_their_order() -> None:
    whole = answer(1)
    add(whole, [answer(2), answer(3)], 2)
    assert [event.text for event in whole.events] == ["of worker 2", "of worker 1"]


def test_what_only_a_worker_has_is_told_too() -> None:
    whole, other = answer(1), answer(2)
    other.jobs[0].generation = "h"
    other.jobs[0].links.add(node=2)
    add(whole, [other, other], 10)
    assert [(job.generation, job.rounds_done) for job in whole.jobs] == [("g", 10), ("h", 40)]
    assert [link.node for link in whole.jobs[1].links] == [1, 2]


def test_without_workers_all_stays_as_it_is() -> None:
    whole = answer(1)
    add(whole, [], 10)
    assert whole == answer(1)
