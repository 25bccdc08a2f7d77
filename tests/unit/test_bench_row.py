from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire_ops.bench_network import Network
from gradwire_ops.bench_row import Measurement, Row
from gradwire_ops.lab_plan import LabPlan

MEASURED = Measurement(
    size_bytes=8_000_000,
    path="shared_memory",
    seconds=0.002,
    gloo_seconds=0.003,
    daemon_cpu_seconds_per_gigabyte=1.5,
    p50_seconds=None,
    p99_seconds=None,
    gloo_p50_seconds=None,
    gloo_p99_seconds=None,
)


def row(nodes: int, ranks_per_node: int, network: Network | None = None) -> Row:
    return Row(
        MEASURED,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        schedule="ring",
        wire="exact",
        transport="grpc",
        dtype="float32",
        network=network,
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
        *("dtype", "op", "via", "seconds", "algbw_bytes_per_second", "busbw_bytes_per_second"),
        *("gloo_seconds", "speedup_vs_gloo", "daemon_cpu_seconds_per_gigabyte"),
        *("p50_seconds", "p99_seconds", "gloo_p50_seconds", "gloo_p99_seconds"),
        *("rate_bits_per_second", "delay_seconds", "mtu_bytes", "interfaces"),
        *("payload_bytes_per_second", "limit_seconds", "efficiency", "wire_bytes"),
    }


def test_efficiency_is_the_limit_over_our_time() -> None:
    rate = 64_000_000_000
    network = Network(LabPlan(2, (rate, rate)), payload_bytes_per_second=8e9)
    found = row(2, 2, network).to_dict()
    assert found["limit_seconds"] == pytest.approx(0.001)
    assert found["efficiency"] == pytest.approx(0.5)


def test_a_lossy_wire_has_a_limit_of_its_own() -> None:
    rate = 64_000_000_000
    network = Network(LabPlan(2, (rate, rate)), payload_bytes_per_second=8e9)
    measured = replace(MEASURED, wire_bytes=2_000_000)
    lossy = replace(row(2, 2, network), measured=measured, wire="int8")
    assert lossy.limit_seconds == pytest.approx(0.00025)


def test_on_loopback_there_is_no_limit() -> None:
    found = row(2, 2).to_dict()
    assert (found["limit_seconds"], found["efficiency"]) == (None, None)


def test_the_speed_up_is_above_one_where_gloo_takes_longer() -> None:
    assert row(2, 2).speedup_vs_gloo == pytest.approx(1.5)
