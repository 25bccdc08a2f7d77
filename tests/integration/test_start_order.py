"""Who comes early, late, twice, or dies before it has begun."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import grpc
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire._rendezvous import Meeting
from gradwire_ops import query
from gradwire_ops.children import Child, stop
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LATER_SECONDS = 1.5


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with cluster(1, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as running:
        yield running


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.case("R11")
def test_a_rank_waits_for_its_daemon_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gradwire._channel.PROGRESS_SECONDS", LATER_SECONDS / 3)
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "GRADWIRE_LISTEN": address,
        "GRADWIRE_SOCKET": str(tmp_path / "gradwire.sock"),
        "GRADWIRE_METRICS_LISTEN": "",
    }
    daemons: list[Child] = []

    def serve() -> None:
        log, environment = tmp_path / "log", {**os.environ, **settings}
        daemons.append(Child("the daemon", ["gradwire_server"], environment, log))

    later = threading.Timer(LATER_SECONDS, serve)
    later.start()
    try:
        with (
            caplog.at_level(logging.WARNING),
            gradwire.connect(
                store=dist.HashStore(),
                rank=0,
                world_size=1,
                daemon=address,
                connect_timeout=40.0,
            ) as session,
        ):
            assert session.all_reduce(torch.ones(1)).wait().item() == 1.0
    finally:
        later.join()
        stop(daemons)
    lines = [each.getMessage() for each in caplog.records]
    assert lines == [
        f"no daemon answers at {address} yet; waiting for it, 40 s in all (connect_timeout)"
    ]


@pytest.mark.case("R25")
def test_a_rank_that_dies_while_the_job_forms_is_named_and_its_replacement_gets_the_seat(
    node: Cluster,
) -> None:
    (daemon,) = node.addresses
    described = query.describe(daemon)
    store = dist.HashStore()
    ghost = threading.Thread(target=Meeting(store, 1, 2, 20.0).agree, args=(described,))
    ghost.start()
    with pytest.raises(gradwire.ConnectError, match=r"for the ranks \[1\] of this node"):
        gradwire.connect(store=store, rank=0, world_size=2, daemon=daemon, connect_timeout=1.0)
    ghost.join()
    end = time.monotonic() + 10
    while query.status(daemon).jobs:
        assert time.monotonic() < end
        time.sleep(0.05)

    # All ranks anew, as a launcher starts them; the ghost's place is taken by another.
    again, results = dist.HashStore(), []

    def one(rank: int) -> None:
        with gradwire.connect(store=again, rank=rank, world_size=2, daemon=daemon) as session:
            results.append(session.all_reduce(torch.full((3,), rank + 1.0)).wait().tolist())

    ranks = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert results == [[1.5] * 3] * 2


def refusals(daemon: str) -> float:
    """How many the daemon has counted."""
    with urlopen(f"http://{query.status(daemon).metrics}/metrics", timeout=5) as page:
        lines = [line.split() for line in page.read().decode().splitlines()]
    name = 'gradwire_errors_total{kind="RefusedError"}'
    return sum(float(line[1]) for line in lines if line[0] == name)


@pytest.mark.case("R03")
def test_a_chunk_of_an_earlier_life_is_refused_counted_and_not_added(node: Cluster) -> None:
    (daemon,) = node.addresses
    described = query.describe(daemon)
    request = pb.JoinRequest(
        protocol=PROTOCOL, generation=os.urandom(8).hex(), world_size=1, pid=os.getpid()
    )
    request.nodes.add(id=described.node_id, address=described.address, ranks=[0])
    with grpc.insecure_channel(daemon) as channel:
        stub = AggregatorStub(channel)
        old = stub.Join(request, timeout=10)
        stub.Leave(pb.LeaveRequest(seat=old.seat), timeout=10)
        before = refusals(daemon)
        with gradwire.connect(
            store=dist.HashStore(), rank=0, world_size=1, daemon=daemon
        ) as session:
            late = pb.ReduceRequest(sequence=0, weight=1.0, payload=b"\0\0\0\x40")
            said = stub.Reduce(iter([pb.ReduceRequest(seat=old.seat), late]), timeout=10)
            with pytest.raises(grpc.RpcError) as caught:
                list(said)
            assert session.all_reduce(torch.ones(1)).wait().item() == 1.0
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "this seat is not known here: join first" in (caught.value.details() or "")
    assert refusals(daemon) == before + 1


RANKS = 16


@pytest.mark.case("R14")
def test_a_daemon_with_sixteen_open_streams_answers_and_takes_one_more_rank(
    node: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    monkeypatch.setenv("GRADWIRE_SHM", "off")
    (daemon,) = node.addresses
    store, over = dist.HashStore(), threading.Event()
    ready = threading.Barrier(RANKS + 1)
    ends: list[float] = []

    def one(rank: int) -> None:
        with gradwire.connect(
            store=store, rank=rank, world_size=RANKS, daemon=daemon
        ) as session:
            assert session.path == "stream"
            ends.append(session.all_reduce(torch.full((3,), float(rank))).wait().sum().item())
            ready.wait(60)
            over.wait(60)

    ranks = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    try:
        ready.wait(60)
        with grpc.insecure_channel(daemon) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for _ in range(5):
                began = time.monotonic()
                answer = health.Check(health_pb2.HealthCheckRequest(), timeout=10)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
                assert time.monotonic() - began < 1.0
        with gradwire.connect(
            store=dist.HashStore(), rank=0, world_size=1, daemon=daemon
        ) as another:
            assert another.all_reduce(torch.ones(1)).wait().item() == 1.0
    finally:
        over.set()
    for rank in ranks:
        rank.join(30)
    assert ends == [3 * (RANKS - 1) / 2] * RANKS
