"""A rank that comes late, or not at all, to one collective: who is named, where, how often."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from urllib.request import urlopen

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster

InProcesses: TypeAlias = Callable[..., list[Any]]
ProcessesOver: TypeAlias = Callable[..., InProcesses]

LATE = 2
HOST = socket.gethostname()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(2, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as running:
        yield running


def log_of(nodes: Cluster, node: int, generation: str) -> list[str]:
    """What a daemon has said of a job."""
    lines = (nodes.folder / f"node{node}.log").read_text().splitlines()
    return [line for line in lines if generation[:8] in line]


def metric(daemon: str, name: str) -> dict[str, float]:
    """The samples of a metric of this daemon."""
    with urlopen(f"http://{query.status(daemon).metrics}/metrics", timeout=5) as page:
        lines = [line.split() for line in page.read().decode().splitlines()]
    return {line[0]: float(line[1]) for line in lines if line[0].startswith(name)}


def impatient(timeout: float, first_timeout: float | None = None) -> Session:
    """Beside the crew's own session, one that does not wait as long."""
    return gradwire.connect(
        daemon=os.environ["DAEMON"],
        timeout=timeout,
        warn_after=0.5,
        first_timeout=first_timeout,
    )


def skip_one(_: Session) -> dict[str, Any]:
    """Rank 2 skips the second of two buckets."""
    with impatient(3.0) as session:
        session.all_reduce(torch.ones(5)).wait()
        stalled, told, events = [], [], []
        error = ""
        if session.rank != LATE:
            waiting = session.all_reduce(torch.ones(5))
            time.sleep(1.5)
            stalled = list(metric(session.daemon, "gradwire_stalled_rounds").values())
            status = query.status(session.daemon)
            told = [
                [each.sequence, list(each.ranks), each.seconds > 0.7]
                for job in status.jobs
                if job.generation == session.generation
                for each in job.stalled
            ]
            events = [each.level for each in status.events if "round 1 has" in each.text]
            with pytest.raises(gradwire.RoundTimeoutError) as caught:
                waiting.wait()
            error = str(caught.value)
        else:
            time.sleep(4.0)
            with pytest.raises(gradwire.RoundTimeoutError) as caught:
                session.all_reduce(torch.ones(5)).wait()
            error = str(caught.value)
        after = session.all_reduce(torch.ones(5)).wait().tolist()
        return {
            "pid": os.getpid(),
            "generation": session.generation,
            "stalled": stalled,
            "told": told,
            "events": events,
            "error": error,
            "after": after,
        }


@pytest.mark.case("R06")
@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_skipped_bucket_is_one_line_with_the_missing_rank_a_metric_and_then_an_error(
    processes_over: ProcessesOver, nodes: Cluster, switch: str
) -> None:
    environments = [
        {"DAEMON": nodes.addresses[rank // 2], "GRADWIRE_SHM": switch} for rank in range(4)
    ]
    ends = processes_over(nodes.addresses)((2, 2), skip_one, environments=environments)
    who = f"rank {LATE} (pid {ends[LATE]['pid']} on {HOST})"
    for number, rank in enumerate(ends):
        assert rank["after"] == [1.0] * 5
        assert "round 1 has waited" in rank["error"]
        assert who in rank["error"]
        if number != LATE:
            assert rank["stalled"] == [1.0]
            # Another node's daemon knows only that its own ranks are complete.
            own = [LATE] if number // 2 == LATE // 2 else []
            assert rank["told"] == [[1, own, True]]
            assert "warning" in rank["events"]
    for node, words in ((0, "(ranks 2, 3)"), (1, who)):
        lines = log_of(nodes, node, ends[0]["generation"])
        warnings = [line for line in lines if "round 1 has waited 0." in line]
        assert len(warnings) == 1, lines
        assert "WARNING" in warnings[0]
        assert words in warnings[0]
        assert not any("round 1 goes on" in line for line in lines)


def come_late(_: Session) -> dict[str, Any]:
    with impatient(30.0) as session:
        session.all_reduce(torch.ones(5)).wait()
        for _late in range(2):
            if session.rank == LATE:
                time.sleep(2.0)
            session.all_reduce(torch.ones(1 << 22)).wait()
        time.sleep(1.0)
        (job,) = [
            each
            for each in query.status(session.daemon).jobs
            if each.generation == session.generation
        ]
        return {
            "pid": os.getpid(),
            "generation": session.generation,
            "straggling": {rank.rank: rank.straggling for rank in job.ranks},
            "metric": metric(session.daemon, "gradwire_rank_straggling"),
        }


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_stall_that_ends_is_told_once_and_who_was_late_has_a_score(
    processes_over: ProcessesOver, nodes: Cluster, switch: str
) -> None:
    environments = [
        {"DAEMON": nodes.addresses[rank // 2], "GRADWIRE_SHM": switch} for rank in range(4)
    ]
    ends = processes_over(nodes.addresses)((2, 2), come_late, environments=environments)
    who = f"rank {LATE} (pid {ends[LATE]['pid']} on {HOST})"
    lines = log_of(nodes, 1, ends[0]["generation"])
    for sequence in (1, 2):
        told = [line for line in lines if f"round {sequence} " in line]
        assert len(told) == 2, lines
        assert "WARNING" in told[0]
        assert who in told[0]
        assert "INFO" in told[1]
        assert f"round {sequence} goes on after " in told[1]
        assert who in told[1]
    scores = {**ends[0]["straggling"], **ends[LATE]["straggling"]}
    assert scores[LATE] > 0.4
    assert max(score for rank, score in scores.items() if rank != LATE) < 0.2
    # The crew's own sessions sit at the same daemons, and have waited for nobody.
    assert ends[LATE]["metric"][f'gradwire_rank_straggling{{rank="{LATE}"}}'] == pytest.approx(
        scores[LATE], abs=0.2
    )
    end = time.monotonic() + 10
    while metric(nodes.addresses[1], "gradwire_rank_straggling"):
        assert time.monotonic() < end
        time.sleep(0.1)


def sleepy(_: Session, slow_step: int) -> str:
    """Three steps of DDP, in one of which rank 1 sleeps; the error, if there is one."""
    with impatient(2.0, first_timeout=20.0) as session:
        replica = DistributedDataParallel(nn.Linear(3, 1))
        replica.register_comm_hook(session, gradwire.allreduce_hook)
        dist.barrier()
        for step in range(1, 4):
            if session.rank == 1 and step == slow_step:
                time.sleep(4.0)
            try:
                replica(torch.ones(2, 3)).sum().backward()
            except RuntimeError as error:  # torch makes one of whatever a hook's future raises
                return str(error)
        return ""


@pytest.mark.parametrize(("switch", "layout"), [("on", (2,)), ("off", (2,)), ("on", (1, 1))])
def test_the_first_step_is_waited_for_longer_than_others(
    processes_over: ProcessesOver, nodes: Cluster, switch: str, layout: tuple[int, ...]
) -> None:
    addresses = nodes.addresses if len(layout) == 2 else nodes.addresses[:1] * 2
    environments = [{"DAEMON": each, "GRADWIRE_SHM": switch} for each in addresses]
    run = processes_over(nodes.addresses)
    assert run(layout, sleepy, 1, environments=environments) == ["", ""]
    logs = [Path(nodes.folder / f"node{node}.log").read_text() for node in range(2)]
    assert any("has waited 0." in log for log in logs)
    for text in run(layout, sleepy, 3, environments=environments):
        assert "the timeout is 2 s" in text
        assert "of step 3" in text
