"""Who gets a seat, who does not, and what they are told."""

from __future__ import annotations

import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(2) as running:
        yield running


class Meeting:
    """A store of which every rank is a client of its own, as if in a process of its own."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def connect(
        self, rank: int, daemon: str, connect_timeout: float = 20.0
    ) -> gradwire.Session:
        store = dist.TCPStore("127.0.0.1", self._server.port, timeout=timedelta(seconds=60))
        return gradwire.connect(
            store=store,
            rank=rank,
            world_size=self._world_size,
            daemon=daemon,
            timeout=10.0,
            connect_timeout=connect_timeout,
        )

    def connect_all(self, daemons: dict[int, str]) -> list[gradwire.Session]:
        with ThreadPoolExecutor(len(daemons)) as pool:
            return list(pool.map(lambda rank: self.connect(rank, daemons[rank]), daemons))


@pytest.mark.case("R11")
def test_nobody_at_the_daemons_address_is_an_error_with_the_address_and_a_remedy(
    tmp_path: Path,
) -> None:
    for address in (f"unix:{tmp_path}/nobody.sock", "127.0.0.1:1"):
        began = time.monotonic()
        with pytest.raises(gradwire.ConnectError) as caught:
            Meeting(1).connect(0, address, connect_timeout=0.5)
        assert 0.4 < time.monotonic() - began < 3
        for word in (address, "gradwire serve", "GRADWIRE_DAEMON", "0.5 s"):
            assert word in str(caught.value)


@pytest.mark.case("R25")
def test_missing_ranks_are_named_to_every_rank_that_came(nodes: Cluster) -> None:
    meeting = Meeting(4)

    def refused(rank: int) -> tuple[float, str]:
        began = time.monotonic()
        with pytest.raises(gradwire.ConnectError) as caught:
            meeting.connect(rank, nodes.addresses[rank % 2], connect_timeout=1.0)
        return time.monotonic() - began, str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        for seconds, text in pool.map(refused, (0, 2)):
            assert "the ranks 1, 3 of 4 did not connect within 1 s" in text
            assert 0.9 < seconds < 4


@pytest.mark.parametrize("twin", [1, 0])
def test_of_two_processes_with_one_rank_only_one_gets_the_seat(
    nodes: Cluster, twin: int
) -> None:
    meeting = Meeting(2)

    def attempt(rank: int) -> gradwire.Session | str:
        try:
            return meeting.connect(rank, nodes.addresses[0])
        except gradwire.ConnectError as error:
            return str(error)

    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        results = list(pool.map(attempt, (0, 1, twin)))
        sessions = [each for each in results if isinstance(each, gradwire.Session)]
        for session in sessions:
            stack.enter_context(session)
        (complaint,) = [each for each in results if isinstance(each, str)]
        assert sorted(session.rank for session in sessions) == [0, 1]
        assert f"another process as rank {twin}" in complaint
        assert "own RANK" in complaint
        rounds = [session.all_reduce(torch.ones(1), "sum") for session in sessions]
        assert [each.wait().item() for each in rounds] == [2.0, 2.0]


@pytest.mark.case("R03")
@pytest.mark.parametrize("rank", [1, 0])
def test_a_rank_that_is_restarted_alone_is_refused_and_told_why(
    nodes: Cluster, rank: int
) -> None:
    meeting = Meeting(2)
    sessions = meeting.connect_all(dict(enumerate(nodes.addresses)))
    with pytest.raises(gradwire.ConnectError, match=r"restart.*Start all ranks anew"):
        meeting.connect(rank, nodes.addresses[rank], connect_timeout=2.0)
    rounds = [session.all_reduce(torch.ones(1), "sum") for session in sessions]
    assert [each.wait().item() for each in rounds] == [2.0, 2.0]
    for session in sessions:
        session.close()


def test_a_session_can_follow_another_and_leaves_nothing_in_the_process(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_DAEMON", nodes.addresses[0])
    store = dist.HashStore()
    generations = set()
    before = arenas_of_this_process()
    for _ in range(3):
        with gradwire.connect(store=store, rank=0, world_size=1) as session:
            assert session.path == "shared_memory"
            assert arenas_of_this_process() > before
            generations.add(session.generation)
        del session
        gc.collect()
        assert arenas_of_this_process() <= before
    assert len(generations) == 3


def arenas_of_this_process() -> set[str]:
    """What is mapped, by name; a mapped file that was unlinked is still there."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in maps if "/gradwire-" in line}


def test_a_rank_of_another_protocol_is_refused_with_both_versions(nodes: Cluster) -> None:
    address = nodes.addresses[0]
    described = query.describe(address)
    other = PROTOCOL + 41
    request = pb.JoinRequest(
        protocol=other,
        version="7.1.0",
        host="elsewhere",
        generation=os.urandom(8).hex(),
        world_size=1,
    )
    request.nodes.add(id=described.node_id, address=described.address, ranks=[0])
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        AggregatorStub(channel).Join(request, timeout=10)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    details = caught.value.details() or ""
    own = f"this daemon is gradwire {described.version} and speaks protocol {PROTOCOL}"
    theirs = f"rank 0 on elsewhere is gradwire 7.1.0 and speaks {other}"
    assert details == f"{own}, {theirs}; install the same release on both"


def test_another_release_of_the_same_protocol_is_welcome(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire._connect.version", lambda _: "7.1.0")
    monkeypatch.setattr("gradwire._rendezvous.version", lambda _: "7.1.0")
    sessions = Meeting(2).connect_all(dict(enumerate(nodes.addresses)))
    rounds = [session.all_reduce(torch.ones(1), "sum") for session in sessions]
    assert [each.wait().item() for each in rounds] == [2.0, 2.0]
    for session in sessions:
        session.close()


def test_the_daemon_that_is_named_wins(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_DAEMON", nodes.addresses[1])
    monkeypatch.setenv("GRADWIRE_NODE", "one that would be started")
    with gradwire.connect(store=dist.HashStore(), rank=0, world_size=1) as session:
        assert session.daemon == nodes.addresses[1]


def test_every_mistake_in_a_ranks_settings_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_TIMEOUT", "soon")
    monkeypatch.setenv("GRADWIRE_SHM", "maybe")
    monkeypatch.setenv("GRADWIRE_DAEMON", "nowhere")
    with pytest.raises(gradwire.ConnectError) as caught:
        gradwire.connect(store=dist.HashStore(), rank=0, world_size=1, warn_after=-1.0)
    for word in ("GRADWIRE_TIMEOUT=soon", "GRADWIRE_SHM=maybe", "warn_after=-1.0", "nowhere"):
        assert word in str(caught.value)


def test_without_a_job_in_the_environment_the_remedy_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(gradwire.ConnectError, match=r"RANK.*torchrun"):
        gradwire.connect()


def test_two_jobs_at_once_on_the_same_daemons_do_not_mix(nodes: Cluster) -> None:
    def run(job: int) -> set[float]:
        sessions = Meeting(2).connect_all(dict(enumerate(nodes.addresses)))
        seen: set[float] = set()
        for turn in range(10):
            tensors = [torch.full((700_001,), job + turn + each.rank) for each in sessions]
            rounds = [
                each.all_reduce(tensor, "sum")
                for each, tensor in zip(sessions, tensors, strict=True)
            ]
            for each in rounds:
                seen.update((each.wait() - 2 * turn).unique().tolist())
        for session in sessions:
            session.close()
        return seen

    jobs = (1000, 2000)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, jobs)) == [{2.0 * job + 1} for job in jobs]
