from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None,
    reason="the demo's data comes with scikit-learn, which is not installed",
)

DEMO = [sys.executable, "-m", "gradwire_ops", "demo"]
EXAMPLE = Path(__file__).parents[2] / "client" / "examples" / "digits.py"


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The demo with all its temporary files in this folder; ended if the test did not."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [*DEMO, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def await_training(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    next(line for line in process.stderr if "epoch 1/" in line)


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    with demo(tmp_path, "--epochs", "2", "--json") as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    findings = json.loads(output)
    assert [one["kept"] for one in findings["checks"]] == [True, True, True]
    assert [node["ranks"] for node in findings["nodes"]] == [[0, 1], [2, 3]]
    assert all(node["wire_bytes_received"] for node in findings["nodes"])
    assert all(node["seconds_waiting"] for node in findings["nodes"])
    assert "epoch 2/2" in errors
    assert not list(tmp_path.iterdir())


def test_a_daemon_that_dies_ends_the_demo_and_is_named(tmp_path: Path) -> None:
    with demo(tmp_path, "--epochs", "1000") as process:
        await_training(process)
        started = children(process)
        daemon = next(one for one in started if "gradwire_server" in one.cmdline())
        daemon.kill()
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "the daemon of node 0 was ended by SIGKILL" in errors
    assert not psutil.wait_procs(started, timeout=0)[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    with demo(tmp_path, "--epochs", "1000") as process:
        await_training(process)
        started = children(process)
        began = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=20)
        assert time.monotonic() - began < 10
    assert process.returncode not in {0, 1, 2}
    assert not psutil.wait_procs(started, timeout=0)[1]
    assert not list(tmp_path.iterdir())


def test_the_example_learns_under_torchrun_with_no_daemon_around(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(EXAMPLE)],
        env={**environment, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]
    assert float(last.split("accuracy ")[1].rstrip("%")) > 90
