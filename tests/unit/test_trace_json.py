"""Traces of several hosts in one file, by the rules of the Trace Event Format."""

from __future__ import annotations

import json
import struct
from contextlib import ExitStack
from typing import Any

import pytest

from gradwire_proto.trace_clocks import shifts
from gradwire_proto.trace_json import to_json
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.errors import LimitError
from gradwire_server.testing_trace import check_trace
from gradwire_server.tracing import MOST_LISTENERS, Recorder, Track

JOB = "0123456789abcdef"
AHEAD = 5_000_000_000


def source(node: int, offset: int | None = None, clock: str = "") -> pb.TraceSource:
    """A daemon of three nodes; `offset`: how far the next one's clock is ahead of its own."""
    nodes = ["a", "b", "c"]
    job = pb.TraceJob(generation=JOB, node=node, nodes=nodes)
    job.ranks.add(rank=node, host=f"h{node}", pid=100 + node)
    if offset is not None:
        job.offsets.add(node=(node + 1) % 3, nanoseconds=offset)
    return pb.TraceSource(
        node_id=nodes[node], host=f"h{node}", pid=7, clock=clock or f"clock{node}", jobs=[job]
    )


def span(start: int, end: int, round_: int = 0, **fields: Any) -> pb.TraceSpan:  # noqa: ANN401
    fields = {"stage": "wire", "track": "rounds", **fields}
    return pb.TraceSpan(
        start_nanoseconds=start, end_nanoseconds=end, generation=JOB, round=round_, **fields
    )


def answer(
    who: pb.TraceSource, *spans: pb.TraceSpan, dropped: int = 0
) -> list[pb.TraceResponse]:
    return [pb.TraceResponse(spans=spans), pb.TraceResponse(source=who, dropped=dropped)]


def drawn(document: dict[str, Any]) -> list[dict[str, Any]]:
    check_trace(json.loads(json.dumps(document)))
    return [each for each in document["traceEvents"] if each["ph"] == "X"]


def test_clocks_are_put_on_the_first_ones_along_what_was_measured() -> None:
    assert shifts([source(0, 50), source(1, 7), source(2)]) == [0, 50, 57]
    assert shifts([source(0), source(1, 7), source(2, -40)]) == [0, 33, 40]


def test_what_both_sides_measured_counts_half_each() -> None:
    there, back = source(0, 100), source(1)
    back.jobs[0].offsets.add(node=0, nanoseconds=-80)
    assert shifts([there, back]) == [0, 90]


def test_processes_of_one_host_read_one_clock_whatever_was_measured() -> None:
    assert shifts([source(0, 50, "same"), source(1, clock="same")]) == [0, 0]


def test_what_happens_at_one_moment_on_two_hosts_is_drawn_there() -> None:
    at = 1_000_000
    one = answer(source(0, AHEAD), span(at, at + 3000, 1, peer=1, chunk=2, bytes=64))
    other = answer(source(1), span(AHEAD + at + 1500, AHEAD + at + 2500, rank=1))
    first, second = drawn(to_json([one, other]))
    assert (first["ts"], first["dur"], first["pid"]) == (0.0, 3.0, 0)
    assert first["args"] == {"generation": JOB, "round": 1, "chunk": 2, "peer": 1, "bytes": 64}
    assert (second["ts"], second["dur"]) == (1.5, 1.0)
    names = {
        each["pid"]: each["args"]["name"]
        for each in to_json([one, other])["traceEvents"]
        if each["name"] == "process_name"
    }
    assert names[0] == "daemon of node 0 on h0 (pid 7)"
    assert names[1] == "daemon of node 1 on h1 (pid 7)"
    assert names[second["pid"]] == "rank 1 on h1 (pid 101)"


def test_a_clock_that_nobody_compared_is_told_of_as_is_who_did_not_answer() -> None:
    document = to_json([answer(source(0)), answer(source(1), dropped=9)], ["no daemon at x"])
    assert document["metadata"]["missing"][0] == "no daemon at x"
    assert "b on h1 could not be compared" in document["metadata"]["missing"][1]
    daemons = document["metadata"]["daemons"]
    assert [each["clock_ahead_nanoseconds"] for each in daemons] == [0, None]
    assert [each["dropped"] for each in daemons] == [0, 9]


def test_rounds_that_overlap_lie_in_threads_of_their_own_and_stages_in_one() -> None:
    stages = [
        span(start, end, round_, stage=stage)
        for round_ in range(3)
        for stage, start, end in (
            ("copy_in", 100 * round_, 100 * round_ + 50),
            ("wire", 100 * round_ + 50, 100 * round_ + 150),
        )
    ]
    events = drawn(to_json([answer(source(0), *stages)]))
    threads = {each["args"]["round"]: each["tid"] for each in events}
    assert len(events) == 6
    assert threads[0] == threads[2] != threads[1]


def test_spans_that_cross_are_not_drawn_in_one_thread() -> None:
    crossing = [span(0, 100), span(50, 150), span(10, 20)]
    events = drawn(to_json([answer(source(0), *crossing)]))
    assert len({each["tid"] for each in events}) == 2


def test_a_trace_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="does not say whose"):
        to_json([[pb.TraceResponse()]])


def test_nothing_is_recorded_while_nobody_listens_and_all_who_do_hear_it() -> None:
    recorder = Recorder()
    recorder.record(Track("rounds"), [("wire", 1, 2)])
    assert not recorder.on
    with recorder.listening() as one:
        recorder.record(Track("rounds", 3), [("wire", 1, 2)], generation=JOB, round=0, bytes=5)
        with recorder.listening() as two:
            recorder.record(Track("rounds"), [("decode", 3, 2)])
        assert recorder.on
    assert not recorder.on
    first, second = one.take().spans
    assert (first.rank, first.stage, first.round, first.bytes) == (3, "wire", 0, 5)
    assert first.HasField("round")
    assert not first.HasField("chunk")
    assert not second.HasField("rank")
    assert second.end_nanoseconds == second.start_nanoseconds == 3
    assert [each.stage for each in two.take().spans] == ["decode"]


def test_of_more_than_there_is_room_for_the_oldest_are_lost_and_counted() -> None:
    recorder = Recorder()
    with recorder.listening(most_spans=10) as listener:
        for number in range(25):
            recorder.record(Track("rounds"), [("wire", number, number)])
        part = listener.take()
    assert [each.start_nanoseconds for each in part.spans] == list(range(15, 25))
    assert part.dropped == 15


def test_processes_have_names_of_their_own_that_steer_no_terminal() -> None:
    first, second = source(0), source(1)
    for each in (first, second):
        each.host = "h\x1b[31m\n"
        each.jobs[0].node = 0
    document = to_json([answer(first), answer(second)])
    named = [each for each in document["traceEvents"] if each["name"] == "process_name"]
    names = [each["args"]["name"] for each in named]
    assert len(set(names)) == len(names) == 4
    assert all(name.isprintable() for name in names)


def test_a_host_whose_clock_is_unknown_is_named_without_what_would_steer_a_terminal() -> None:
    second = source(1)
    second.host = "h\x1b[31m\n"
    (missing,) = to_json([answer(source(0)), answer(second)])["metadata"]["missing"]
    assert "b on h\ufffd[31m\ufffd could not" in missing
    assert missing.isprintable()


def test_times_that_make_no_sense_end_no_trace() -> None:
    recorder = Recorder()
    with recorder.listening() as listener:
        recorder.record(Track("from node 1"), [("wire", -5, -3)], generation=JOB, round=0)
        part = listener.take()
    (one,) = part.spans
    assert (one.start_nanoseconds, one.end_nanoseconds) == (0, 0)
    words = struct.pack("<4q", 0, 0, -7, -5)
    noted = pb.TraceDeeds(generation=JOB, rank=0, words=words)
    said = [pb.TraceResponse(deeds=[noted]), pb.TraceResponse(source=source(0))]
    assert len(drawn(to_json([said]))) == 1


def test_there_are_only_so_many_traces_at_a_time() -> None:
    recorder = Recorder()
    with ExitStack() as stack:
        for _ in range(MOST_LISTENERS):
            stack.enter_context(recorder.listening())
        with pytest.raises(LimitError, match="traces are being recorded"):
            stack.enter_context(recorder.listening())
    assert not recorder.on
    with recorder.listening():
        assert recorder.on
