"""`gradwire bench --lab`, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

TIMEOUT_SECONDS = 60
RATE = 500_000_000


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradwire_ops", "bench", "--lab", "--repeat", "1"]
    return subprocess.run(
        [*command, *arguments],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_a_benchmark_in_a_laboratory_says_what_its_links_allow() -> None:
    layout = ("--nodes", "2", "--ranks-per-node", "1", "--rate", "500mbit")
    result = bench(*layout, "--sizes", "4KiB,4MiB", "--json")
    assert result.returncode == 0, result.stderr
    small, large = json.loads(result.stdout)
    for row in (small, large):
        assert row["rate_bits_per_second"] == RATE
        assert (row["delay_seconds"], row["mtu_bytes"], row["interfaces"]) == (0.0, 1500, 1)
        assert 0.5 <= row["payload_bytes_per_second"] * 8 / RATE <= 0.97
        limit = row["size_bytes"] / row["payload_bytes_per_second"]
        assert row["limit_seconds"] == pytest.approx(limit)
        assert row["efficiency"] == pytest.approx(limit / row["seconds"])
        assert row["daemon_cpu_seconds_per_gigabyte"] > 0
    assert 0 < small["p50_seconds"] <= small["p99_seconds"]
    assert 0 < small["gloo_p50_seconds"] <= small["gloo_p99_seconds"]
    assert large["p50_seconds"] is large["gloo_p99_seconds"] is None
    # A burst passes at once, and is a twentieth of the tensor.
    assert max(large["seconds"], large["gloo_seconds"]) > 0.9 * large["limit_seconds"]


def test_daemons_in_a_laboratory_use_all_its_links() -> None:
    layout = ("--nodes", "2", "--ranks-per-node", "1", "--rate", "100mbit", "--interfaces", "2")
    result = bench(*layout, "--sizes", "8MiB", "--json")
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    # One link alone would reach a half; gloo has one.
    assert row["efficiency"] > 0.6


def test_a_laboratory_of_one_node_is_an_error_of_usage() -> None:
    result = bench("--nodes", "1", "--rate", "1gbit")
    assert result.returncode == 2
    assert "--nodes" in result.stderr
    assert "links between them" in result.stderr


def test_a_benchmark_over_two_interfaces_has_the_rate_of_both() -> None:
    layout = ("--nodes", "2", "--ranks-per-node", "1", "--rate", "200mbit", "--interfaces", "2")
    result = bench(*layout, "--sizes", "16MiB", "--json")
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert row["interfaces"] == 2
    # With one of them it would be at most a half.
    assert row["efficiency"] > 0.6
