from __future__ import annotations

import pytest

from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.reduce.choose import NAMES, SCHEDULES, choose, reducer

KIB = 1024


@pytest.mark.parametrize(
    ("chunk_bytes", "nodes", "schedule"),
    [
        (2048 * KIB, 2, "ring"),
        (2048 * KIB, 100, "ring"),
        (64 * KIB + 1, 8, "ring"),
        (64 * KIB, 8, "direct"),
        (64 * KIB, 4, "direct"),
        (64 * KIB, 3, "one-shot"),
        (128 * KIB, 2, "one-shot"),
        (128 * KIB + 1, 2, "ring"),
        (0, 8, "one-shot"),
        (64 * KIB, 9, "tree"),
        (0, 1000, "tree"),
    ],
)
def test_large_chunks_save_bytes_and_small_ones_save_hops(
    chunk_bytes: int, nodes: int, schedule: str
) -> None:
    assert NAMES[choose(chunk_bytes, nodes)] == schedule


def test_every_schedule_of_the_contract_has_a_name_and_a_reducer() -> None:
    assert set(SCHEDULES.values()) == set(pb.Schedule.values()) - {pb.SCHEDULE_UNSPECIFIED}
    kinds = {type(reducer(schedule, 0, 2)).__name__.lower() for schedule in NAMES}
    assert kinds == {name.replace("-", "") for name in SCHEDULES}
