from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.reduce.choose import (
    NAMES,
    SCHEDULES,
    choose,
    reducer,
    share_weights,
)

KIB = 1024


@pytest.mark.parametrize(
    ("chunk_bytes", "nodes", "schedule"),
    [
        (4096 * KIB, 2, "ring"),
        (4096 * KIB, 4, "ring"),
        (4096 * KIB, 8, "direct"),
        (4096 * KIB, 100, "ring"),
        (256 * KIB, 2, "ring"),
        (256 * KIB, 3, "direct"),
        (1024 * KIB, 3, "ring"),
        (256 * KIB, 9, "ring"),
        (128 * KIB, 2, "one-shot"),
        (128 * KIB, 3, "tree"),
        (0, 2, "one-shot"),
        (0, 1000, "tree"),
    ],
)
def test_large_chunks_save_bytes_and_small_ones_save_hops(
    chunk_bytes: int, nodes: int, schedule: str
) -> None:
    assert NAMES[choose(chunk_bytes, nodes)] == schedule


@pytest.mark.parametrize(
    ("chunk_bytes", "nodes", "schedule"),
    [
        (4096 * KIB, 2, "one-shot"),
        (4096 * KIB, 3, "direct"),
        (4096 * KIB, 9, "ring"),
        (KIB, 2, "one-shot"),
        (KIB, 3, "tree"),
    ],
)
def test_what_is_gathered_goes_where_blank_parts_save_most(
    chunk_bytes: int, nodes: int, schedule: str
) -> None:
    assert NAMES[choose(chunk_bytes, nodes, gathers=True)] == schedule


def test_large_chunks_go_direct_where_the_networks_differ() -> None:
    assert NAMES[choose(2048 * KIB, 4, alike=False)] == "direct"
    assert NAMES[choose(KIB, 4, alike=False)] == "tree"


@pytest.mark.parametrize(
    ("bandwidths", "weights"),
    [
        ((1, 1, 1, 1), ("1/4", "1/4", "1/4", "1/4")),
        ((10, 10, 10, 2), ("1/3", "1/3", "1/3", "0")),
        ((1, 1000), ("1/2", "1/2")),
        ((5, 5, 5, 4), ("11/38", "11/38", "11/38", "5/38")),
    ],
)
def test_slower_nodes_add_up_less_so_that_all_end_together(
    bandwidths: tuple[int, ...], weights: tuple[str, ...]
) -> None:
    assert share_weights(bandwidths) == tuple(map(Fraction, weights))


@given(bandwidths=st.lists(st.integers(1, 10**11), min_size=2, max_size=40))
def test_no_node_takes_longer_than_it_must(bandwidths: list[int]) -> None:
    """The bound of an exact all-reduce: S over the slowest, or 2(M-1) S over the sum."""
    weights, nodes = share_weights(bandwidths), len(bandwidths)
    assert sum(weights) == 1
    assert min(weights) >= 0
    longest = max(
        (1 + (nodes - 2) * weight) / rate
        for weight, rate in zip(weights, bandwidths, strict=True)
    )
    slowest, together = Fraction(1, min(bandwidths)), Fraction(2 * nodes - 2, sum(bandwidths))
    assert longest >= max(slowest, together)
    if 0 not in weights:
        assert longest == max(slowest, together)


def test_every_schedule_of_the_contract_has_a_name_and_a_reducer() -> None:
    assert set(SCHEDULES.values()) == set(pb.Schedule.values()) - {pb.SCHEDULE_UNSPECIFIED}
    kinds = {type(reducer(schedule, 0, 2)).__name__.lower() for schedule in NAMES}
    assert kinds == {name.replace("-", "") for name in SCHEDULES}
