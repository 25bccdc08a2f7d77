"""`gradwire status --watch`, as somebody reads it who then presses Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from gradwire_ops.cluster import cluster
from gradwire_ops.status_view import view
from gradwire_ops.status_words import slow_links
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 40


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    with cluster(1) as nodes:
        yield nodes.addresses[0]


def lines_of(daemon: str, *flags: str, until: str) -> tuple[list[str], int]:
    """What it prints until this has come twice, and its exit code after Ctrl-C."""
    command = [sys.executable, "-m", "gradwire_ops", "status", "--watch", "--daemon", daemon]
    lines: list[str] = []
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        for line in watching.stdout:
            lines.append(line)
            if sum(until in each for each in lines) == 2:
                break
        watching.send_signal(signal.SIGINT)
        return lines, watching.wait(SECONDS)


def test_the_status_comes_again_until_it_is_interrupted(daemon: str) -> None:
    lines, code = lines_of(daemon, until="no jobs")
    assert code == 0
    assert sum(line.startswith("daemon ") for line in lines) == 2


def test_json_is_an_object_a_line(daemon: str) -> None:
    lines, code = lines_of(daemon, "--json", until="node_id")
    assert code == 0
    first, second = map(json.loads, lines)
    assert first["node_id"] == second["node_id"]
    assert second["uptime_seconds"] > first["uptime_seconds"]


def printed(answer: pb.StatusResponse, before: pb.StatusResponse | None = None) -> str:
    console = Console(width=220, highlight=False, record=True, quiet=False)
    with console.capture() as captured:
        console.print(view(answer, before))
    return captured.get()


def job(**fields: float) -> pb.StatusResponse:
    answer = pb.StatusResponse(jobs=[pb.JobStatus(generation="g", world_size=1)])
    for stage, seconds in fields.items():
        answer.jobs[0].stages.add(stage=stage, seconds=seconds)
    answer.jobs[0].ledger_seconds = sum(fields.values())
    return answer


def test_where_the_time_goes_is_of_the_time_since_the_last_answer() -> None:
    before, now = job(wire=9, queue=1), job(wire=10, queue=4)
    assert "where the time goes: wire 71%, queue 29%" in printed(now)
    assert "where the time goes: queue 75%, wire 25%" in printed(now, before)


def test_names_neither_steer_a_terminal_nor_are_markup() -> None:
    name = "\x1b[2J[/red][bold]x"
    answer = pb.StatusResponse(jobs=[pb.JobStatus(generation=name, failure=name)])
    answer.jobs[0].nodes.add(host=name, ranks=[0])
    answer.jobs[0].ranks.add(rank=0, host=name, joined=True)
    answer.jobs[0].links.add(node=1, address=name)
    answer.jobs[0].stalled.add(whom=name)
    answer.events.add(text=name)
    text = printed(answer)
    assert "\x1b[2J" not in text
    assert text.count("[/red][bold]x") == 6


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    answer = pb.StatusResponse(jobs=[pb.JobStatus(generation="g")])
    answer.jobs[0].nodes.add(ranks=[0])
    answer.jobs[0].ranks.add(rank=0, joined=True)
    answer.jobs[0].links.add(node=1, connected=True)
    text = printed(answer)
    assert "bit/s" not in text
    assert " 0.00" not in text
    assert "where the time goes" not in text
    assert "lately" not in text


def test_a_rank_that_has_left_is_not_missing() -> None:
    answer = pb.StatusResponse(jobs=[pb.JobStatus(generation="g", world_size=2)])
    answer.jobs[0].nodes.add(ranks=[0, 1])
    answer.jobs[0].ranks.add(rank=0, left=True)
    assert "missing" in printed(answer), "the other one"
    answer.jobs[0].ranks.add(rank=1, joined=True)
    text = printed(answer)
    assert " left " in text
    assert "missing" not in text


def test_a_slow_link_and_a_rank_that_is_waited_for_are_named_in_words() -> None:
    answer = pb.StatusResponse(jobs=[pb.JobStatus(generation="g", world_size=5)])
    answer.jobs[0].nodes.add(ranks=[0, 1])
    answer.jobs[0].ranks.add(rank=0, joined=True, straggling=0.24)
    answer.jobs[0].ranks.add(rank=1, joined=True, straggling=0.26)
    for node, bandwidth, trip in ((1, 10e6, 1e-3), (2, 9e6, 1e-3), (3, 4e6, 1e-3), (4, 9e6, 1)):
        fields = {"bandwidth": bandwidth, "round_trip_seconds": trip, "usual_bandwidth": 1e7}
        answer.jobs[0].links.add(node=node, address=f"n{node}", connected=True, **fields)
    answer.jobs[0].links[0].usual_bandwidth = 3e7
    lines = printed(answer).splitlines()

    def said_of(text: str) -> str:
        (line,) = (each for each in lines if text in each)
        return line

    assert "joined" in said_of(" 24% ")
    assert "holds others up" in said_of(" 26% ")
    assert "slower than it was" in said_of(" n1 ")
    assert "slower" not in said_of(" n2 ")
    assert "slower than it was" in said_of(" n3 ")
    assert "slower than the others" in said_of(" n4 ")


def test_of_an_even_number_of_others_the_lower_one_counts_as_on_the_page() -> None:
    links = [pb.LinkStatus(node=node, bandwidth=each) for node, each in enumerate((3, 4, 10))]
    assert slow_links(links) == {}
    links[0].bandwidth = 1.9
    assert slow_links(links) == {0: "the others"}
