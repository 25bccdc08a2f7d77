"""Traces of real daemons, and what torch's profiler shows of a rank."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import gradwire
from gradwire import Session
from gradwire_ops import query
from gradwire_ops import trace as command
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub
from gradwire_server.engine import CLOSE_SECONDS
from gradwire_server.testing_trace import check_trace

ROUNDS_BYTES = 1 << 16
PATIENCE_SECONDS = 30
FOLLOWED_SECONDS = 1.5
"""By then a daemon looks at what the ranks of a job do."""


def trace(address: str, out: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    flags = ["trace", "--daemon", address, "--seconds", str(seconds), "--out", str(out)]
    return subprocess.run(
        [sys.executable, "-m", "gradwire_ops", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check_stages(document: dict[str, Any]) -> None:
    """Of two daemons and their ranks each has what it does itself."""
    drawn: dict[int, set[str]] = {}
    for each in document["traceEvents"]:
        if each["ph"] == "X":
            drawn.setdefault(each["pid"], set()).add(each["name"])
    daemons, ranks = drawn.keys() & {0, 1}, drawn.keys() - {0, 1}
    assert (len(daemons), len(ranks)) == (2, 2)
    for pid in daemons:
        assert drawn[pid] >= {"queue", "decode", "wire"}
    for pid in ranks:
        assert drawn[pid] == {"copy_in", "copy_out"}


def test_a_trace_has_both_daemons_and_the_shares_that_crossed(
    threads_over: Callable[..., Any], tmp_path: Path
) -> None:
    out, kept = tmp_path / "trace.json", tmp_path / "kept.json"
    with cluster(2, {"GRADWIRE_TRACE": str(kept)}) as nodes:
        over = threading.Event()

        def work(session: Session) -> str:
            tensor = torch.ones(ROUNDS_BYTES // 4)
            # Rank 0 says when to stop, in what it brings.
            while session.all_reduce(tensor.fill_(0.0 if over.is_set() else 1.0)).wait()[0] > 0:
                pass
            return session.generation

        def ask() -> None:
            try:
                results.append(trace(nodes.addresses[0], out, 1.0))
            finally:
                over.set()

        results: list[subprocess.CompletedProcess[str]] = []
        asking = threading.Thread(target=ask)
        asking.start()
        generation = threads_over(nodes.addresses)((1, 1), work)[0]
        asking.join()
        assert results[0].returncode == 0, results[0].stderr
    document = json.loads(out.read_text())
    check_trace(document)
    spans = [each for each in document["traceEvents"] if each["ph"] == "X"]
    check_stages(document)
    for each in spans:
        assert each["args"]["generation"] == generation
        assert each["args"].keys() >= {"round", "chunk"}
    assert document["metadata"]["missing"] == []
    # Both wrote the same file here; whoever was last, all of it is there.
    check_trace(json.loads(kept.read_text()))
    assert any(each["ph"] == "X" for each in json.loads(kept.read_text())["traceEvents"])


def test_two_traces_at_a_time_and_none_of_no_time() -> None:
    with cluster(1) as nodes:
        first = threading.Thread(target=query.trace, args=(nodes.addresses[0], 1.0))
        first.start()
        assert query.trace(nodes.addresses[0], 0.2).parts[-1].source.host
        first.join()
        with grpc.insecure_channel(nodes.addresses[0]) as channel:
            stub = AggregatorStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Trace(pb.TraceRequest(seconds=0.0)))
            assert "expected a trace of up to 3600 s, got 0" in str(caught.value)


def test_a_job_that_is_drawn_ends_as_soon_as_any_other(
    threads_over: Callable[..., Any], tmp_path: Path
) -> None:
    def work(session: Session) -> None:
        deadline = time.monotonic() + FOLLOWED_SECONDS
        while session.rank == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        session.all_reduce(torch.ones(10)).wait()

    with cluster(1, {"GRADWIRE_TRACE": str(tmp_path / "kept.json")}) as nodes:
        threads_over(nodes.addresses)((2,), work)
        begun = time.monotonic()
        while query.status(nodes.addresses[0]).jobs:
            time.sleep(0.05)
        assert time.monotonic() - begun < CLOSE_SECONDS


def test_a_trace_that_is_interrupted_is_written_as_far_as_it_came(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    with cluster(1) as nodes:
        program = [sys.executable, "-m", "gradwire_ops", "trace", "--seconds", "600"]
        with subprocess.Popen(
            [*program, "--daemon", nodes.addresses[0], "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as asking:
            assert asking.stderr is not None
            assert "Ctrl-C" in asking.stderr.readline()
            asking.send_signal(signal.SIGINT)
            said, _ = asking.communicate(timeout=PATIENCE_SECONDS)
    assert asking.returncode == 0
    assert "1 daemons" in said
    check_trace(json.loads(out.read_text()))


def start_trace(nodes: Cluster, out: Path, seconds: float) -> subprocess.Popen[str]:
    """One that records by now."""
    program = [sys.executable, "-m", "gradwire_ops", "trace", "--seconds", str(seconds)]
    asking = subprocess.Popen(
        [*program, "--daemon", nodes.addresses[0], "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asking.stderr is not None
    assert "recording" in asking.stderr.readline()
    return asking


def names_of(document: dict[str, Any]) -> list[str]:
    """Of the processes."""
    named = [each for each in document["traceEvents"] if each["name"] == "process_name"]
    return [each["args"]["name"] for each in named]


def test_a_job_that_begins_later_is_recorded_on_all_nodes_until_a_daemon_dies(
    threads_over: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "trace.json"

    def work(session: Session) -> None:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            session.all_reduce(torch.ones(10)).wait()
            time.sleep(0.05)

    with cluster(2) as nodes, start_trace(nodes, out, 6.0) as asking:
        threads_over(nodes.addresses)((1, 1), work)
        os.kill(nodes.daemons[1].pid, signal.SIGKILL)
        _, said = asking.communicate(timeout=PATIENCE_SECONDS)
    document = json.loads(out.read_text())
    check_trace(document)
    drawn = [each["spans"] for each in document["metadata"]["daemons"]]
    assert len(drawn) == 2
    assert min(drawn) > 0
    (missing,) = document["metadata"]["missing"]
    assert "its trace ends before its time" in missing
    assert missing in said.replace("\n", "")


def test_daemons_of_a_job_too_short_to_ask_them_are_named(
    threads_over: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, begun, ask = tmp_path / "trace.json", threading.Event(), query.trace

    def recorded(*arguments: Any) -> query.Recording:  # noqa: ANN401
        begun.set()
        return ask(*arguments)

    def work(session: Session) -> None:
        session.all_reduce(torch.ones(10)).wait()
        if session.rank == 0:
            recording.join()
        session.all_reduce(torch.ones(10)).wait()

    monkeypatch.setattr(query, "trace", recorded)
    monkeypatch.setattr(command, "LOOK_SECONDS", PATIENCE_SECONDS)
    with cluster(2) as nodes:
        other = query.describe(nodes.addresses[1]).node_id
        recording = threading.Thread(target=command.run, args=(nodes.addresses[0], 4.0, out))
        recording.start()
        assert begun.wait(PATIENCE_SECONDS)
        threads_over(nodes.addresses)((1, 1), work)
    (missing,) = json.loads(out.read_text())["metadata"]["missing"]
    assert f"the daemon {other}: its job began too late" in missing


def test_all_workers_of_all_nodes_are_recorded_each_by_a_name_of_its_own(
    threads_over: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "trace.json"

    def work(session: Session) -> None:
        if session.rank == 0:
            assert trace(nodes.addresses[0], out, 0.3).returncode == 0
        session.all_reduce(torch.ones(1)).wait()

    with cluster(2, {"GRADWIRE_WORKERS": "2"}) as nodes:
        threads_over(nodes.addresses)((1, 1), work)
    document = json.loads(out.read_text())
    assert len(document["metadata"]["daemons"]) == 4
    assert document["metadata"]["missing"] == []
    names = names_of(document)
    assert len(names) == len(set(names)) >= 4


def test_a_short_trace_has_what_the_ranks_did(threads_over: Callable[..., Any]) -> None:
    def work(session: Session) -> int:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(query.trace, nodes.addresses[0], 0.3)
            going = torch.ones(1)
            while going.item():
                going.fill_(0.0 if session.rank == 0 and asked.done() else 1.0)
                session.all_reduce(going, "min").wait()
            return sum(len(part.deeds) for part in asked.result().parts)

    with cluster(1) as nodes:
        assert min(threads_over(nodes.addresses)((2,), work)) > 0


@pytest.mark.parametrize("out", ["missing/trace.json", "."])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_recorded(
    tmp_path: Path, out: str
) -> None:
    with cluster(1) as nodes:
        begun = time.monotonic()
        result = trace(nodes.addresses[0], tmp_path / out, 600.0)
        assert time.monotonic() - begun < PATIENCE_SECONDS
    assert result.returncode == 2
    assert "can't write" in result.stderr
    assert list(tmp_path.iterdir()) == []


def serve_traced(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    flags = ["--listen", "127.0.0.1:0", "--metrics-listen", "", "--trace", str(out)]
    return subprocess.run(
        [sys.executable, "-m", "gradwire_ops", "serve", *flags, "--socket", f"{folder}/s"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_a_daemon_does_not_start_where_its_trace_could_not_be_written(tmp_path: Path) -> None:
    out = tmp_path / "missing" / "trace.json"
    result = serve_traced(tmp_path, out)
    assert result.returncode == 1
    assert f"can't write a trace to {out}" in result.stderr


def test_a_daemon_does_not_put_a_file_in_the_place_of_a_device(tmp_path: Path) -> None:
    out = tmp_path / "pipe"
    os.mkfifo(out)
    result = serve_traced(tmp_path, out)
    assert result.returncode == 1
    assert f"can't write a trace to {out}: no regular file" in result.stderr
    assert out.is_fifo()


def test_on_stdout_there_is_the_trace_and_nothing_else() -> None:
    with cluster(1) as nodes:
        result = trace(nodes.addresses[0], Path("/dev/stdout"), 0.2)
    check_trace(json.loads(result.stdout))
    assert "ui.perfetto.dev" in result.stderr


def test_where_stdout_is_a_file_the_trace_goes_there_and_all_links_stay(
    tmp_path: Path,
) -> None:
    # By links of our own: as root a mistake would cost this machine its /dev/stdout.
    out, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(out)
    program = [sys.executable, "-m", "gradwire_ops", "trace", "--seconds", "0.2"]
    with cluster(1) as nodes:
        ask = partial(
            subprocess.run,
            [*program, "--daemon", nodes.addresses[0], "--out", str(link)],
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
        with out.open("w") as stdout:
            stdout.write("before\n")
            stdout.flush()
            said = ask(stdout=stdout).stderr
        before, _, document = out.read_text().partition("\n")
        assert before == "before"
        check_trace(json.loads(document))
        assert "ui.perfetto.dev" in said
        assert "ui.perfetto.dev" in ask(stdout=subprocess.PIPE).stdout
    check_trace(json.loads(out.read_text()))
    assert link.readlink() == out
    assert sorted(tmp_path.iterdir()) == [link, out]


def test_what_is_no_address_is_wrong_usage(tmp_path: Path) -> None:
    result = trace("garbage", tmp_path / "out", 0.2)
    assert result.returncode == 2
    assert "expected HOST:PORT" in result.stderr


def test_where_no_daemon_answers_the_command_says_so(tmp_path: Path) -> None:
    result = trace(f"unix:{tmp_path}/none", tmp_path / "out", 0.2)
    assert result.returncode == 1
    assert "no daemon answers at" in result.stderr
    assert not (tmp_path / "out").exists()


def profiled(session: Session) -> list[str]:
    """What the profile of one training step has of ours."""
    model = DistributedDataParallel(nn.Linear(8, 8))
    model.register_comm_hook(session, gradwire.allreduce_hook)
    model(torch.ones(2, 8)).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        model(torch.ones(2, 8)).sum().backward()
        session.all_reduce(torch.ones(3)).wait()
    names = {event.name for event in seen.events() or ()}
    return sorted(name for name in names if name.startswith("gradwire::"))


def test_the_hooks_stages_are_in_the_profile_of_torch(
    in_processes: Callable[..., list[Any]],
) -> None:
    expected = ["gradwire::bucket 0", "gradwire::submit", "gradwire::wait"]
    assert in_processes((1, 1), profiled) == [expected, expected]
