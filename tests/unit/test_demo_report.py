from __future__ import annotations

from dataclasses import replace

from gradwire_ops.demo_report import Communication, RankReport, check, summarise

USED = Communication(
    rounds=10,
    bytes_in=4096,
    seconds_waiting=0.5,
    nodes=2,
    path="shared_memory",
    wire_bytes_sent=2048,
    wire_bytes_received=1024,
)
OURS = [RankReport(rank, rank // 2, 0.97, 0.1, "ab" * 32, 2.0, USED) for rank in range(4)]
GLOO = [replace(report, communication=None, digest="cd" * 32) for report in OURS]


def kept(ours: list[RankReport]) -> list[bool]:
    return [one.kept for one in check(ours, GLOO)]


def test_all_promises_are_kept_by_equal_ranks_with_gloos_accuracy() -> None:
    assert kept(OURS) == [True, True, True]


def test_a_rank_with_other_bits_is_named() -> None:
    ours = [*OURS[:3], replace(OURS[3], digest="ef" * 32)]
    assert kept(ours) == [False, True, True]
    assert "[3]" in check(ours, GLOO)[0].evidence


def test_half_a_point_of_accuracy_is_tolerated_and_no_more() -> None:
    assert kept([replace(report, accuracy=0.9651) for report in OURS])[1]
    assert not kept([replace(report, accuracy=0.9649) for report in OURS])[1]
    assert not kept([replace(report, accuracy=0.9751) for report in OURS])[1]


def test_a_node_that_sent_nothing_breaks_a_promise() -> None:
    silent = replace(USED, wire_bytes_sent=0)
    ours = [*OURS[:2], *(replace(report, communication=silent) for report in OURS[2:])]
    assert kept(ours) == [True, True, False]


def test_a_node_is_summed_up_once_however_many_ranks_it_has() -> None:
    first, second = summarise(OURS)
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    assert (first.wire_bytes_sent, first.wire_bytes_received) == (2048, 1024)
    assert first.seconds_waiting == 0.5


def test_a_report_is_read_from_the_trainers_line() -> None:
    line = {
        "event": "report",
        "rank": 1,
        "node": 0,
        "accuracy": 0.97,
        "loss": 0.1,
        "digest": "ab" * 32,
        "seconds": 2.0,
        "communication": {
            "rounds": 10,
            "bytes_in": 4096,
            "seconds_waiting": 0.5,
            "nodes": 2,
            "path": "shared_memory",
            "wire_bytes_sent": 2048,
            "wire_bytes_received": 1024,
        },
    }
    assert RankReport.parse(line) == OURS[1]
