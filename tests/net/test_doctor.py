"""The doctor under torchrun's environment on nodes of a laboratory, with planted faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gradwire_ops.lab import Lab, lab
from gradwire_ops.lab_plan import LabPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

RATE = 1_000_000_000
SECONDS = 90


@pytest.fixture(scope="module")
def net() -> Iterator[Lab]:
    with lab(LabPlan(3, (RATE,) * 3)) as built:
        yield built


def examined(
    net: Lab,
    ranks: Sequence[int] = (0, 1, 2),
    *,
    before: Sequence[Sequence[str]] = ((), (), ()),
    environments: Sequence[dict[str, str]] = ({}, {}, {}),
    timeout: int = 60,
) -> tuple[list[int], list[dict[str, Any]]]:
    """Exit codes, and what was printed: one process on each node. `before` stands before the
    command.
    """
    command = [sys.executable, "-m", "gradwire_ops", "doctor", "--json", "--seconds", "0.4"]
    command += ["--timeout", str(timeout)]
    meeting = {"WORLD_SIZE": str(len(ranks)), "MASTER_PORT": "29500"}
    processes = [
        subprocess.Popen(
            node.enter([*prefix, *command]),
            env={
                **os.environ,
                **meeting,
                "MASTER_ADDR": net.nodes[0].addresses[0],
                "RANK": str(rank),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, rank, prefix, environment in zip(
            net.nodes, ranks, before, environments, strict=True
        )
    ]
    try:
        said = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert all(code in {0, 1} for code in codes), [error for _, error in said]
    return codes, [json.loads(out) for out, _ in said if out]


def wrong(net: Lab, document: dict[str, Any]) -> set[tuple[str, str]]:
    """Check, and the numbers of the nodes that it is about."""
    numbers = {node.addresses[0]: str(number) for number, node in enumerate(net.nodes)}
    return {
        (
            each["check"],
            ">".join(numbers[end.rpartition("@")[2]] for end in each["where"].split(" -> ")),
        )
        for each in document["findings"]
        # What the machine's own name leads to is none of the laboratory's.
        if each["verdict"] in {"warning", "failure"} and each["check"] != "own name"
    }


def test_a_healthy_network_has_nothing_to_be_done(net: Lab) -> None:
    _, (document,) = examined(net)
    assert wrong(net, document) == set()
    rates = [link["bytes_per_second"] for link in document["links"]]
    assert len(rates) == 6
    assert 0.7 * RATE < 8 * min(rates) <= 8 * max(rates) < 1.1 * RATE
    bound = 2 * 2 / 3 * (100 << 20) / min(rates)
    assert document["forecast"]["seconds"]["exact"] == pytest.approx(bound, rel=0.1)


@contextmanager
def small_memory(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_each_planted_fault_is_named_and_nothing_else(net: Lab, tmp_path: Path) -> None:
    second = net.nodes[1]
    narrow = second.enter(["ip", "link", "set", second.interfaces[0], "mtu", "1400"])
    wide = second.enter(["ip", "link", "set", second.interfaces[0], "mtu", "1500"])
    subprocess.run(narrow, check=True)
    net.change_rate(2, RATE // 5)
    try:
        with small_memory(tmp_path):
            codes, (document,) = examined(
                net,
                before=(["prlimit", "--nofile=256:256"], [], []),
                environments=({}, {"GRADWIRE_SHM_DIR": str(tmp_path)}, {}),
            )
    finally:
        net.change_rate(2, None)
        subprocess.run(wide, check=True)
    assert codes == [1, 1, 1]
    assert wrong(net, document) == {
        ("open files", "0"),
        ("shared memory", "1"),
        ("path MTU", "1>0"),
        ("path MTU", "1>2"),
        ("link", "0>2"),
        ("link", "1>2"),
        ("link", "2>0"),
        ("link", "2>1"),
    }
    settings = " ".join(document["forecast"]["settings"])
    assert "GRADWIRE_BANDWIDTH" in settings
    assert net.nodes[2].addresses[0] in settings


def test_a_rank_that_is_there_twice_is_named(net: Lab) -> None:
    _, (document,) = examined(net, (0, 1, 1))
    (finding,) = [each for each in document["findings"] if each["check"] == "ranks"]
    assert finding["found"] == "twice: 1; missing: 2"


def test_a_master_that_only_leads_home_is_named_on_the_others(net: Lab) -> None:
    home = {"MASTER_ADDR": "127.0.0.1"}
    subprocess.run(net.nodes[1].enter(["ip", "link", "set", "lo", "up"]), check=True)
    codes, documents = examined(net, environments=(home, home, home), timeout=5)
    assert codes == [1, 1, 1]
    found = [
        each["found"]
        for document in documents
        for each in document["findings"]
        if each["check"] == "MASTER_ADDR"
    ]
    assert found
    assert all("127.0.0.1:29500 leads to 127.0.0.1" in each for each in found)
