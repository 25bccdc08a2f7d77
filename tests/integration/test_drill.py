"""`gradwire drill`, as a user starts it: a short set of every fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gradwire_ops.cluster import cluster
from gradwire_ops.drill_job import Ranks
from gradwire_ops.drill_plan import FAULTS, DrillFlags, make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire_ops.drill_plan import DrillPlan

DRILL = [sys.executable, "-m", "gradwire_ops", "drill"]
SMALL = ("--steps", "30", "--size", "1MiB", "--seconds", "0.3,0.6", "--timeout", "15")
TIMEOUT_SECONDS = 90

SURVIVED, CLEANLY = "survived", "failed cleanly"
ALLOWED = {"kill-rank": {CLEANLY}}


@contextmanager
def own_memory() -> Iterator[Path]:
    """A folder for shared memory in which nobody else makes any."""
    with tempfile.TemporaryDirectory(prefix="drilled-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def memory() -> Iterator[Path]:
    """See own_memory."""
    with own_memory() as folder:
        yield folder


def environment(folder: Path, memory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "GRADWIRE_SHM_DIR": str(memory)}


def drill(folder: Path, memory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DRILL, *arguments],
        env=environment(folder, memory),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def left_behind(folder: Path, memory: Path) -> list[Path]:
    return [*folder.iterdir(), *memory.iterdir()]


@dataclass(frozen=True, slots=True)
class ShortSet:
    """All faults, once each."""

    found: list[dict[str, Any]]
    exit_code: int
    words: str
    left: list[Path]


@pytest.fixture(scope="module")
def short_set(tmp_path_factory: pytest.TempPathFactory) -> ShortSet:
    folder = tmp_path_factory.mktemp("drill")
    with own_memory() as memory:
        result = drill(folder, memory, "all", "--json", *SMALL)
        left = left_behind(folder, memory)
    return ShortSet(json.loads(result.stdout), result.returncode, result.stderr, left)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_job_survives_it_with_the_same_bits_or_fails_by_name(
    short_set: ShortSet, fault: str
) -> None:
    allowed = ALLOWED.get(fault, {SURVIVED})
    (found,) = [one for one in short_set.found if one["fault"] == fault]
    assert found["verdict"] in allowed, short_set.words
    assert found["bits_equal"] is True
    assert found["leftovers"] == []
    if found["verdict"] == SURVIVED:
        assert found["steps_lost"] == 0
        assert 0 <= found["recover_seconds"] < 15
    else:
        assert found["steps_lost"] >= 1
        assert 0 <= found["detect_seconds"] <= found["raised_seconds"] < 10


def test_the_exit_code_says_whether_all_was_as_expected(short_set: ShortSet) -> None:
    as_expected = all(
        one["verdict"] == (CLEANLY if one["fault"] == "kill-rank" else SURVIVED)
        for one in short_set.found
    )
    assert short_set.exit_code == (0 if as_expected else 1)


def test_drills_leave_no_file_behind(short_set: ShortSet) -> None:
    assert not short_set.left


def test_an_unknown_fault_is_an_error_of_usage(tmp_path: Path, memory: Path) -> None:
    result = drill(tmp_path, memory, "flood")
    assert result.returncode == 2
    assert "kill-rank, kill-daemon" in result.stderr


def test_an_interrupted_drill_leaves_nothing_behind(tmp_path: Path, memory: Path) -> None:
    with subprocess.Popen(
        [*DRILL, "kill-rank", "--repeat", "1000", *SMALL],
        env=environment(tmp_path, memory),
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
    assert not left_behind(tmp_path, memory)


def plan() -> DrillPlan:
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
        "resume": 0.0,
    }
    return make_plan(DrillFlags(**given))


def live(
    folder: Path, memory: Path, daemon: str, fault: str, *arguments: str
) -> dict[str, Any]:
    arguments = ("--seconds", "0.3,0.6", *arguments)
    result = drill(folder, memory, fault, "--daemon", daemon, "--yes", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(result.stdout)
    return dict(found)


def test_a_job_that_runs_is_disturbed_and_watched(tmp_path: Path, memory: Path) -> None:
    endless = plan()
    with cluster(1) as nodes, Ranks(endless, nodes.addresses, endless.steps) as ranks:
        assert ranks.await_step(3, 30)
        (address,) = nodes.addresses
        asked = drill(tmp_path, memory, "kill-rank", "--daemon", address)
        assert asked.returncode == 2
        assert "--yes" in asked.stderr
        assert all(psutil.pid_exists(one.pid) for one in ranks.records)
        stopped = live(tmp_path, memory, address, "stop-daemon")
        assert stopped["verdict"] == SURVIVED
        assert stopped["recover_seconds"] < 10
        assert stopped["bits_equal"] is None
        killed = live(tmp_path, memory, address, "kill-rank")
        assert killed["verdict"] == CLEANLY
        ranks.await_end(20)
        assert sorted(one.exit_code == 0 for one in ranks.records) == [False, True]


def test_a_daemon_that_nobody_starts_again_ends_its_job(tmp_path: Path, memory: Path) -> None:
    endless = plan()
    # What it leaves is the next daemon's to remove: there will be none.
    with (
        cluster(1, {"GRADWIRE_SHM_DIR": str(memory)}) as nodes,
        Ranks(endless, nodes.addresses, endless.steps) as ranks,
    ):
        assert ranks.await_step(3, 30)
        where = ("--daemon", nodes.addresses[0], "--yes", "--json")
        result = drill(tmp_path, memory, "kill-daemon", *where)
        ranks.await_end(20)
        assert all(one.error and one.error[1] == "LostError" for one in ranks.records)
    assert result.returncode == 1
    (found,) = json.loads(result.stdout)
    assert found["verdict"] == CLEANLY
    assert found["detect_seconds"] < 10


def test_what_cannot_be_done_to_a_job_that_runs_is_said(tmp_path: Path, memory: Path) -> None:
    with cluster(1) as nodes:
        cut = drill(tmp_path, memory, "partition", "--daemon", nodes.addresses[0], "--yes")
        idle = drill(tmp_path, memory, "kill-rank", "--daemon", nodes.addresses[0], "--yes")
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
