"""A stopwatch's stages add up to what passed, whatever it is told."""

from __future__ import annotations

import random

import pytest

from gradwire_server.stopwatch import Stopwatch


def test_what_is_not_timed_was_spent_in_the_queue() -> None:
    watch = Stopwatch(100)
    watch.lap("encode", 110, 150)
    watch.lap("decode", 150, 160)
    watch.stop(165)
    assert watch.spent == {"queue": 15, "encode": 40, "decode": 10}
    assert (watch.begun, watch.ended) == (100, 165)


@pytest.mark.parametrize(
    ("left", "came", "spent"),
    [
        (130, 150, {"wait_peers": 30, "wire": 20, "queue": 10}),
        # It had left before anybody waited for it.
        (50, 150, {"wire": 50, "queue": 10}),
        # By its clock it came before it left: clocks are not compared to the last microsecond.
        (155, 150, {"wait_peers": 50, "queue": 10}),
        (None, 150, {"wire": 50, "queue": 10}),
        # It had come already, and this node was busy.
        (50, 90, {"queue": 60}),
    ],
)
def test_a_wait_is_for_the_peer_then_for_the_wire_then_for_this_node(
    left: int | None, came: int, spent: dict[str, int]
) -> None:
    watch = Stopwatch(100)
    watch.wait(100, left, came, 160)
    assert watch.spent == spent


@pytest.mark.parametrize("seed", range(20))
def test_stages_add_up_whatever_the_clocks_say(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - times, no secrets
    watch = Stopwatch(1000)
    watch.spans = []
    for _ in range(50):
        begun = watch.ended + draw.randrange(-20, 50)
        ended = begun + draw.randrange(-10, 100)
        if draw.random() < 0.5:
            watch.lap("decode", begun, ended)
        else:
            watch.wait(begun, draw.choice([None, begun + 3, begun - 300]), ended - 5, ended)
    watch.stop(watch.ended + 7)
    assert sum(watch.spent.values()) == watch.ended - watch.begun
    last = watch.begun
    for _, begun, ended in watch.spans:
        assert begun == last
        last = ended
    assert last == watch.ended
