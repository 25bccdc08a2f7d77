"""Whatever becomes of who built a laboratory, it leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan
from gradwire_ops.namespace import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWNER = Path(__file__).parent / "programs" / "owner.py"
SECONDS = 20


@pytest.fixture
def outside() -> Iterator[Namespace]:
    """A namespace that is no laboratory's; a cable from here into one shows when that ends."""
    namespace = Namespace()
    yield namespace
    namespace.close()


def plug(outside: Namespace, path: str) -> None:
    command = ["ip", "link", "add", "cable", "type", "veth", "peer", "name", "plug"]
    subprocess.run(outside.enter([*command, "netns", path]), check=True, timeout=10)


def is_plugged(outside: Namespace) -> bool:
    command = outside.enter(["ip", "link", "show", "cable"])
    return not subprocess.run(command, capture_output=True, check=False, timeout=10).returncode


def await_end(running: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while running():
        assert time.monotonic() < deadline, f"still there after {SECONDS} s: {running()}"
        time.sleep(0.05)


def holders(inode: int) -> list[str]:
    """Processes in a network namespace, or with a file open that stands for it."""
    name = f"net:[{inode}]"
    found = []
    for path in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")):
        try:
            if os.readlink(path) == name:
                found.append(str(path))
        except OSError:
            continue
    return found


def test_a_laboratory_that_was_left_is_gone(outside: Namespace) -> None:
    before = psutil.Process().children(recursive=True)
    with lab(LabPlan(2, (10**9, 10**9))) as net:
        plug(outside, net.nodes[1].namespace.path)
        assert is_plugged(outside)
    await_end(lambda: is_plugged(outside))
    assert psutil.Process().children(recursive=True) == before


@pytest.mark.usefixtures("delays")
def test_a_killed_owner_takes_its_laboratory_along(outside: Namespace, tmp_path: Path) -> None:
    # The daemons' sockets and logs stay: a folder has no owner whose end it could notice.
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(OWNER)]
    with subprocess.Popen(command, env=temporary, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        line = owner.stdout.readline()
        assert line, "it never stood"
        found = json.loads(line)
        children = psutil.Process(owner.pid).children(recursive=True)
        plug(outside, found["paths"][0])
        assert is_plugged(outside)
        owner.kill()
    assert len(children) == 3, "two daemons and the relay"
    assert list(tmp_path.glob("gradwire-lab-*")) == []
    await_end(lambda: [one.name() for one in children if one.is_running()])
    await_end(lambda: [path for inode in found["inodes"] for path in holders(inode)])
    await_end(lambda: is_plugged(outside))
