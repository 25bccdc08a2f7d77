"""`gradwire drill`, as a user starts it: a short set of every fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gradwire_ops.cluster import cluster
from gradwire_ops.drill_job import Ranks
from gradwire_ops.drill_plan import DrillFlags, make_plan

if TYPE_CHECKING:
    from gradwire_ops.drill_plan import DrillPlan

DRILL = [sys.executable, "-m", "gradwire_ops", "drill"]
SMALL = ("--steps", "30", "--size", "1MiB", "--seconds", "0.3,0.6", "--timeout", "15")
TIMEOUT_SECONDS = 90
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where a drill's daemons have their arenas

SURVIVED, CLEANLY = "survived", "failed cleanly"
# Strict once daemons and links are taken up again: until then these may fail, but cleanly.
RESUMED = {"kill-daemon": {SURVIVED, CLEANLY}, "reset-link": {SURVIVED, CLEANLY}}


def drill(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DRILL, *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def left_behind(folder: Path) -> list[Path]:
    return [*folder.iterdir(), *SHARED_MEMORY.glob("gradwire-drill-*")]


@pytest.mark.parametrize(
    ("fault", "allowed"),
    [
        ("kill-daemon", RESUMED["kill-daemon"]),
        ("stop-daemon", {SURVIVED}),
        ("reset-link", RESUMED["reset-link"]),
        ("partition", {SURVIVED}),
        ("corrupt-chunk", {SURVIVED}),
        ("kill-rank", {CLEANLY}),
    ],
)
def test_a_job_survives_it_with_the_same_bits_or_fails_by_name(
    tmp_path: Path, fault: str, allowed: set[str]
) -> None:
    result = drill(tmp_path, fault, "--json", *SMALL)
    (found,) = json.loads(result.stdout)
    assert found["fault"] == fault
    assert found["verdict"] in allowed, result.stderr
    assert found["bits_equal"] is True
    assert found["leftovers"] == []
    assert result.returncode == (
        found["verdict"] != (CLEANLY if fault == "kill-rank" else SURVIVED)
    )
    if found["verdict"] == SURVIVED:
        assert found["steps_lost"] == 0
        assert 0 <= found["recover_seconds"] < 15
    else:
        assert found["steps_lost"] >= 1
        assert 0 <= found["detect_seconds"] <= found["raised_seconds"] < 10
    assert not left_behind(tmp_path)


def test_an_unknown_fault_is_an_error_of_usage(tmp_path: Path) -> None:
    result = drill(tmp_path, "flood")
    assert result.returncode == 2
    assert "kill-rank, kill-daemon" in result.stderr


def test_an_interrupted_drill_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DRILL, "kill-rank", "--repeat", "1000", *SMALL],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if "[1/1000]" in line)
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode not in {0, 1, 2}
    assert not psutil.wait_procs(started, timeout=5)[1]
    assert not left_behind(tmp_path)


def plan(**flags: Any) -> DrillPlan:
    given: dict[str, Any] = {
        "fault": "kill-rank",
        "repeat": 1,
        "seed": 0,
        "nodes": 1,
        "ranks": 2,
        "steps": 100_000,
        "size": "64KiB",
        "seconds": "0.3,0.6",
        "rate": "50mbit",
        "timeout": 15.0,
        "resume": None,
    }
    return make_plan(DrillFlags(**{**given, **flags}))


def live(folder: Path, daemon: str, fault: str, *arguments: str) -> dict[str, Any]:
    arguments = ("--seconds", "0.3,0.6", *arguments)
    result = drill(folder, fault, "--daemon", daemon, "--yes", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(result.stdout)
    return dict(found)


def test_a_job_that_runs_is_disturbed_and_watched(tmp_path: Path) -> None:
    endless = plan()
    with cluster(1) as nodes, Ranks(endless, nodes.addresses, endless.steps) as ranks:
        assert ranks.await_step(3, 30)
        (address,) = nodes.addresses
        asked = drill(tmp_path, "kill-rank", "--daemon", address)
        assert asked.returncode == 2
        assert "--yes" in asked.stderr
        assert all(psutil.pid_exists(one.pid) for one in ranks.records)
        stopped = live(tmp_path, address, "stop-daemon")
        assert stopped["verdict"] == SURVIVED
        assert stopped["recover_seconds"] < 10
        assert stopped["bits_equal"] is None
        killed = live(tmp_path, address, "kill-rank")
        assert killed["verdict"] == CLEANLY
        ranks.await_end(20)
        assert sorted(one.exit_code == 0 for one in ranks.records) == [False, True]


def test_what_cannot_be_done_to_a_job_that_runs_is_said(tmp_path: Path) -> None:
    with cluster(1) as nodes:
        cut = drill(tmp_path, "partition", "--daemon", nodes.addresses[0], "--yes")
        idle = drill(tmp_path, "kill-rank", "--daemon", nodes.addresses[0], "--yes")
    assert cut.returncode == 2
    assert "can't be done to a job that runs" in cut.stderr
    assert idle.returncode == 1
    assert "no job runs" in idle.stderr


def test_a_rank_that_does_not_end_is_found_and_ended() -> None:
    endless = plan()
    with cluster(1) as nodes:
        with Ranks(endless, nodes.addresses, endless.steps) as ranks:
            assert ranks.await_step(1, 30)
            began = time.monotonic()
            ranks.await_end(0.2)
            assert time.monotonic() - began < 10
            assert [one.exit_code for one in ranks.records] == [None, None]
            pids = [one.pid for one in ranks.records]
        assert not any(map(psutil.pid_exists, pids))
