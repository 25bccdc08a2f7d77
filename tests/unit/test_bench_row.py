from __future__ import annotations

import pytest

from gradwire_ops.bench_row import Row


def row(nodes: int, ranks_per_node: int) -> Row:
    return Row(
        size_bytes=8_000_000,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        schedule="ring",
        wire="exact",
        path="shared_memory",
        transport="grpc",
        dtype="float32",
        seconds=0.002,
        gloo_seconds=0.003,
    )


def test_algbw_is_size_over_time() -> None:
    assert row(2, 2).algbw_bytes_per_second == pytest.approx(4e9)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_busbw_is_algbw_times_2_ranks_less_one_over_ranks(ranks: int, factor: float) -> None:
    one = row(1, ranks)
    assert one.busbw_bytes_per_second == pytest.approx(factor * one.algbw_bytes_per_second)


def test_the_json_has_the_keys_that_were_promised() -> None:
    assert row(2, 2).to_dict().keys() == {
        *("size_bytes", "nodes", "ranks_per_node", "schedule", "wire", "path", "transport"),
        *("dtype", "seconds", "algbw_bytes_per_second", "busbw_bytes_per_second"),
        *("gloo_seconds", "speedup_vs_gloo"),
    }


def test_the_speed_up_is_above_one_where_gloo_takes_longer() -> None:
    assert row(2, 2).speedup_vs_gloo == pytest.approx(1.5)
