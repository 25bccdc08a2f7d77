from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

TIMEOUT_SECONDS = 100


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradwire_ops", "bench", "--repeat", "1", *arguments],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_bench_prints_a_table_and_shows_progress_beside_it() -> None:
    result = bench("--sizes", "4B,64KiB", "--dtype", "bfloat16")
    assert result.returncode == 0, result.stderr
    for word in ("4 B", "64 KiB", "local", "busbw", "speed-up"):
        assert word in result.stdout
    assert "64 KiB" in result.stderr


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_bench_prints_json_that_a_program_can_read(op: str) -> None:
    layout = ("--nodes", "2", "--ranks-per-node", "1", "--daemon-cores", "1")
    result = bench("--json", "--sizes", "1KiB,5MiB", "--op", op, *layout)
    assert result.returncode == 0, result.stderr
    small, large = json.loads(result.stdout)
    assert (small["size_bytes"], large["size_bytes"]) == (1024, 5 << 20)
    assert (small["schedule"], large["schedule"]) == ("one-shot", "ring")
    for row in (small, large):
        assert (row["nodes"], row["ranks_per_node"]) == (2, 1)
        assert (row["wire"], row["transport"], row["dtype"]) == ("exact", "grpc", "float32")
        ratio = row["gloo_seconds"] / row["seconds"]
        assert row["speedup_vs_gloo"] == pytest.approx(ratio)
        assert row["daemon_cpu_seconds_per_gigabyte"] > 0
        assert row["limit_seconds"] is row["rate_bits_per_second"] is None
    assert 0 < small["p50_seconds"] <= small["p99_seconds"]
    assert 0 < small["gloo_p50_seconds"] <= small["gloo_p99_seconds"]
    assert large["p50_seconds"] is None


def test_bench_of_codecs_prints_a_table_and_json() -> None:
    arguments = ("--codecs", "--sizes", "1MiB")
    shown = bench(*arguments)
    assert shown.returncode == 0, shown.stderr
    for words in ("codecs, 1 MiB of float32", "break-even", "int8, stochastic", "topk, 1%"):
        assert words in shown.stdout
    read = bench("--json", *arguments)
    assert read.returncode == 0, read.stderr
    rows = {row["codec"]: row for row in json.loads(read.stdout)}
    assert len(rows) == 7
    for row in rows.values():
        assert row["size_bytes"] == 1 << 20
        assert row["encode_bytes_per_second"] > 0 < row["decode_bytes_per_second"]
        assert row["break_even_bits_per_second"] > 0
    assert rows["bf16"]["encoded_share"] == 0.5
    assert rows["int8"]["relative_error"] < 0.01 < rows["fp8"]["relative_error"]


def test_bench_of_codecs_refuses_what_belongs_to_jobs() -> None:
    result = bench("--codecs", "--nodes", "2", "--lab")
    assert result.returncode == 2
    assert result.stderr.split("\n")[:2] == [
        "--nodes: does not go with --codecs",
        "--lab: does not go with --codecs",
    ]
