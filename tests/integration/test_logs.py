"""The log as JSON, of real daemons whose ranks stall and die."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.children import Child, stop
from gradwire_ops.cluster import Cluster, cluster

PROGRAMS = Path(__file__).parent / "programs"
KEYS = {"time", "level", "message", "logger"}
PATIENCE_SECONDS = 15.0


def lines_of(nodes: Cluster, node: int) -> list[dict[str, Any]]:
    """All that a daemon has said; each line must be an object."""
    text = (nodes.folder / f"node{node}.log").read_text()
    return [json.loads(line) for line in text.splitlines()]


def await_line(nodes: Cluster, node: int, words: str) -> dict[str, Any]:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        lines = lines_of(nodes, node)
        for line in lines:
            if words in line["message"]:
                return line
        assert time.monotonic() < end, lines
        time.sleep(0.05)


def victim(nodes: Cluster, store: dist.TCPStore, log: Path) -> Child:
    """Rank 1, which joins and then brings nothing."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "GRADWIRE_DAEMON": nodes.addresses[1],
        "GRADWIRE_WARN_AFTER": "0.5",
    }
    return Child("the victim", ["rank", "hold"], environment, log, piped=True)


@pytest.mark.case("R06")
def test_as_json_each_line_parses_and_those_of_a_round_say_which_and_of_whom(
    tmp_path: Path,
) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with cluster(2, {"GRADWIRE_LOG_FORMAT": "json"}) as nodes:
        rank = victim(nodes, store, tmp_path / "log")
        try:
            meeting = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=60))
            place: dict[str, Any] = {"rank": 0, "world_size": 2, "daemon": nodes.addresses[0]}
            with gradwire.connect(store=meeting, warn_after=0.5, **place) as session:
                generation = session.generation
                waiting = session.all_reduce(torch.ones(5))
                stalls = [await_line(nodes, node, "round 0 has waited") for node in (0, 1)]
                rank.signal(signal.SIGKILL)
                with pytest.raises(gradwire.LostError):
                    waiting.wait()
                ends = [await_line(nodes, node, "is over") for node in (0, 1)]
        finally:
            stop([rank])
        await_line(nodes, 0, "has ended")
        said = lines_of(nodes, 0) + lines_of(nodes, 1)
    about = {"generation": generation, "round": 0, "ranks": [1]}
    for line, level in [*((each, "WARNING") for each in stalls), *((e, "ERROR") for e in ends)]:
        assert about.items() <= line.items()
        assert line["level"] == level
    for line in said:
        assert line.keys() >= KEYS
        assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0)
        if "round " in line["message"]:
            assert line.keys() >= about.keys(), line
        if f"generation {generation[:8]}" in line["message"]:
            assert line["generation"] == generation
