"""Drills whose links are cut and slowed down by the kernel, between network namespaces."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan

DRILL = [sys.executable, "-m", "gradwire_ops", "drill"]
SMALL = ("--steps", "30", "--size", "1MiB", "--seconds", "0.5,1", "--timeout", "15")
TIMEOUT_SECONDS = 90


@pytest.mark.parametrize("fault", ["partition", "slow-link"])
def test_a_job_goes_on_when_its_link_is_back(fault: str) -> None:
    result = subprocess.run(
        [*DRILL, fault, "--lab", "--json", "--rate", "10mbit", *SMALL],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(result.stdout)
    assert (found["fault"], found["verdict"]) == (fault, "survived")
    assert found["bits_equal"] is True
    assert 0 <= found["recover_seconds"] < 15


def test_an_unplugged_link_carries_nothing_until_it_is_back() -> None:
    with lab(LabPlan(2)) as net:
        here, there = net.nodes
        door = there.call(lambda: socket.create_server((there.addresses[0], 0)))
        address = door.getsockname()

        def reaches() -> bool:
            try:
                here.call(lambda: socket.create_connection(address, 0.5)).close()
            except OSError:
                return False
            return True

        with closing(door):
            assert reaches()
            net.unplug(1)
            assert not reaches()
            net.plug_in(1)
            deadline = time.monotonic() + 10
            while not reaches():
                assert time.monotonic() < deadline


def test_a_rate_is_changed_and_given_back() -> None:
    def shaped() -> str:
        command = net.nodes[1].enter(["tc", "qdisc", "show", "dev", "eth0"])
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with lab(LabPlan(2)) as net:
        assert "tbf" not in shaped()
        net.change_rate(1, 10_000_000)
        assert "10Mbit" in shaped()
        net.change_rate(1, None)
        assert "tbf" not in shaped()
    with lab(LabPlan(2, (10**9, 10**9))) as net:
        net.change_rate(1, 10_000_000)
        assert "10Mbit" in shaped()
        net.change_rate(1, None)
        assert "1Gbit" in shaped()
