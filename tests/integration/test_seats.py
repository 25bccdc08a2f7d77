"""A rank's seat, from Join to Leave, as any client of the daemon can ask for it."""

from __future__ import annotations

import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
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
from gradwire_proto.v1 import tensor_pb2
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 10


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(2, {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture
def stub(nodes: Cluster) -> Iterator[AggregatorStub]:
    with grpc.insecure_channel(nodes.addresses[0]) as channel:
        yield AggregatorStub(channel)


def join(generation: str, rank: int, ranks: list[int]) -> pb.JoinRequest:
    return pb.JoinRequest(
        protocol=PROTOCOL,
        generation=generation,
        rank=rank,
        world_size=len(ranks),
        nodes=[pb.Node(id="here", address="127.0.0.1:1", host="host", ranks=ranks)],
    )


def test_a_refused_rank_leaves_no_job_behind(nodes: Cluster, stub: AggregatorStub) -> None:
    with pytest.raises(grpc.RpcError, match="rank 7 does not sit at node 0"):
        stub.Join(join("refused", 7, [0]), timeout=SECONDS)
    assert list(query.status(nodes.addresses[0]).jobs) == []


def test_a_second_stream_with_a_seat_is_refused_and_the_first_goes_on(
    stub: AggregatorStub,
) -> None:
    seat = stub.Join(join("twice", 0, [0]), timeout=SECONDS).seat
    hello = pb.ReduceRequest(seat=seat)
    request = pb.ReduceRequest(weight=1.0, payload=torch.ones(2).numpy().tobytes())
    request.spec.op, request.spec.dtype = tensor_pb2.OP_SUM, tensor_pb2.DTYPE_FLOAT32
    request.spec.elements, request.spec.wire = 2, tensor_pb2.WIRE_EXACT
    refused, answered = threading.Event(), threading.Event()

    def first() -> Iterator[pb.ReduceRequest]:
        yield hello
        yield request
        assert refused.wait(SECONDS)
        yield pb.ReduceRequest(sequence=1, payload=request.payload, spec=request.spec)
        # A rank that closes its stream has left, whatever is still under way.
        answered.wait(SECONDS)

    responses = stub.Reduce(first(), timeout=SECONDS)
    assert next(responses).payload == request.payload
    with pytest.raises(grpc.RpcError, match="already has a stream"):
        next(stub.Reduce(iter([hello]), timeout=SECONDS))
    refused.set()
    assert next(responses).payload == request.payload
    stub.Leave(pb.LeaveRequest(seat=seat), timeout=SECONDS)
    answered.set()


def test_the_series_of_a_peer_go_with_the_last_job_that_talks_to_it(nodes: Cluster) -> None:
    store = dist.HashStore()

    def peers() -> list[str]:
        address = query.status(nodes.addresses[0]).metrics
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=SECONDS) as page:
            lines = page.read().decode().splitlines()
        series = ("gradwire_peer_bytes_total{", "gradwire_frames_")
        return [line for line in lines if line.startswith(series) and "_total{" in line]

    def sit(rank: int) -> list[str]:
        daemon = nodes.addresses[rank]
        with gradwire.connect(store=store, rank=rank, world_size=2, daemon=daemon) as session:
            session.all_reduce(torch.ones(3)).wait()
            seen = peers()
            session.all_reduce(torch.ones(3)).wait()
            return seen

    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(sit, range(2)))
    assert [len(lines) for lines in seen] == [4, 4]
    for _ in range(100):
        if query.status(nodes.addresses[0]).jobs:
            time.sleep(0.05)
    assert peers() == []
