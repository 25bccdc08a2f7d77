from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire_ops.drill_messages import Messages
from gradwire_ops.drill_nodes import said
from gradwire_ops.drill_plan import (
    FAULTS,
    DrillFlags,
    PlanError,
    buckets,
    make_plan,
    moment,
)
from gradwire_ops.drill_report import percentile

FLAGS = DrillFlags(
    fault="all",
    repeat=2,
    seed=3,
    nodes=2,
    ranks=2,
    steps=40,
    size="1MiB",
    seconds="1,8",
    rate="50mbit",
    timeout=20.0,
    resume=None,
)


def test_all_is_each_fault_in_turn() -> None:
    plan = make_plan(FLAGS)
    assert plan.faults == FAULTS
    assert plan.layout == (0, 0, 1, 1)
    assert sum(plan.elements) * 4 == pytest.approx(1 << 20, rel=0.01)
    assert plan.rate == 50_000_000


def test_all_mistakes_are_listed() -> None:
    wrong = replace(
        FLAGS, fault="flood", repeat=0, steps=1, size="a lot", seconds="8,1", rate="none"
    )
    with pytest.raises(PlanError) as caught:
        make_plan(wrong)
    for word in ("flood", "--repeat", "--steps", "--size", "--seconds", "--rate"):
        assert word in str(caught.value)


def test_a_fault_of_links_wants_two_nodes() -> None:
    with pytest.raises(PlanError, match="--nodes 1"):
        make_plan(replace(FLAGS, fault="reset-link", nodes=1))
    assert make_plan(replace(FLAGS, fault="kill-rank", nodes=1)).nodes == 1


def test_moments_hang_on_the_seed_alone_and_differ() -> None:
    plan = make_plan(FLAGS)
    alone = make_plan(replace(FLAGS, fault="partition", repeat=9))
    drawn = [moment(plan, "partition", number) for number in range(50)]
    assert drawn == [moment(alone, "partition", number) for number in range(50)]
    assert len(set(drawn)) == 50
    assert all(6 <= each.step <= 24 and 1 <= each.seconds <= 8 for each in drawn)
    assert {each.pick(4, first=1) for each in drawn} == {1, 2, 3}
    assert moment(replace(plan, seed=4), "partition", 0) != drawn[0]


def test_buckets_are_of_unlike_sizes() -> None:
    assert len(set(buckets(8 << 20))) == 4


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3.0, None, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([3.0, None, 1.0, 2.0, 4.0], 0.95) == 4.0
    assert percentile([None], 0.5) is None


def test_ordinary_lines_of_a_log_are_no_words_of_a_fault() -> None:
    log = (
        "2026-01-02 03:04:05,250 gradwire INFO ready: listen 127.0.0.1:1\n"
        "2026-01-02 03:04:05,500 gradwire WARNING from node 1: damaged; it is asked for again\n"
        "Traceback (most recent call last), and so on:\n"
        "2026-01-02 03:04:06,750 gradwire INFO generation abcdef has ended\n"
    )
    (at,) = said(log)
    assert at % 1 == 0.5


def test_only_what_a_message_says_is_changed_and_not_the_first() -> None:
    def frame(size: int) -> bytes:
        message = b"\0" + size.to_bytes(4, "big") + b"\0" * size
        return len(message).to_bytes(3, "big") + b"\0" + b"\0" * 5 + message

    sent = b"P" * 24 + frame(50) + frame(100)
    messages = Messages(24, lambda size: size // 2)
    came = b""
    for start in range(0, len(sent), 7):
        data = bytearray(sent[start : start + 7])
        messages.follow(data)
        came += data
    changed = [at for at, (old, new) in enumerate(zip(sent, came, strict=True)) if old != new]
    assert changed == [len(sent) - 50]
