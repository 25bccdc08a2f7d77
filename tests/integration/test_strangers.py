"""Who is not in a job can't disturb it, whatever it sends to the daemon."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 10
GARBAGE = [b"\x00", b"\xff" * 40, b"\x7a\xff\xff\xff\xff\x0f", os.urandom(5000)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    memory = tmp_path_factory.mktemp("shm")
    with cluster(2, {"GRADWIRE_SHM_DIR": str(memory)}) as running:
        yield running


@pytest.fixture
def sessions(nodes: Cluster) -> Iterator[list[gradwire.Session]]:
    """An honest job, which must get its sums before and after; a rank at each node."""
    store = dist.HashStore()

    def one(rank: int) -> gradwire.Session:
        daemon = nodes.addresses[rank]
        return gradwire.connect(store=store, rank=rank, world_size=2, daemon=daemon)

    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        job = [stack.enter_context(each) for each in pool.map(one, range(2))]
        assert_sums(job)
        yield job
        assert_sums(job)
    assert [daemon.exit_code for daemon in nodes.daemons] == [None, None]


def assert_sums(sessions: list[gradwire.Session]) -> None:
    rounds = [each.all_reduce(torch.full((600_000,), each.rank + 1.0)) for each in sessions]
    for each in rounds:
        assert torch.equal(each.wait(), torch.full((600_000,), 1.5))


@pytest.fixture
def channel(nodes: Cluster) -> Iterator[grpc.Channel]:
    """To the second node, to which the first has opened its stream."""
    address = query.describe(nodes.addresses[1]).address
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield channel


def doorbells(nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = next(tmp_path_factory.getbasetemp().glob("shm*"))
    return sorted(path for path in folder.iterdir() if path.is_socket())


def ring(bell: Path, *packets: bytes) -> bytes:
    """The first answer of a doorbell; nothing where it hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        visitor.settimeout(SECONDS)
        visitor.connect(str(bell))
        try:
            for packet in packets:
                visitor.send(packet)
            return visitor.recv(1 << 16)
        except (BrokenPipeError, ConnectionResetError):
            return b""


@pytest.mark.usefixtures("sessions")
def test_a_doorbell_hangs_up_on_who_has_no_seat(
    nodes: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wrong_seat = pb.Ring(seat="0" * 32).SerializeToString()
    request = pb.Ring(ready=3).SerializeToString()
    bells = doorbells(nodes, tmp_path_factory)
    assert len(bells) == 2
    for bell in bells:
        assert ring(bell, wrong_seat, request) == b""
        for garbage in GARBAGE:
            assert ring(bell, garbage, request) == b""


@pytest.mark.usefixtures("sessions")
def test_garbage_on_the_port_is_no_more_than_that(nodes: Cluster) -> None:
    for address in nodes.addresses:
        host, port = query.describe(address).address.split(":")
        for garbage in (*GARBAGE, b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection((host, int(port)), timeout=SECONDS) as visitor:
                visitor.sendall(garbage)


def answer(channel: grpc.Channel, method: str, *messages: bytes) -> grpc.StatusCode:
    """How the daemon ends a stream of these messages."""
    stream: Any = channel.stream_stream(f"/gradwire.v1.{method}")
    call = stream(iter(messages), timeout=SECONDS)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code()


@pytest.mark.usefixtures("sessions")
def test_a_stream_of_garbage_or_without_a_seat_is_refused(channel: grpc.Channel) -> None:
    for garbage in GARBAGE:
        for method in ("Aggregator/Reduce", "Aggregator/Post"):
            assert answer(channel, method, garbage) in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.FAILED_PRECONDITION,
            )
    seat = pb.Ring(seat="0" * 32).SerializeToString()
    for method in ("Aggregator/Reduce", "Aggregator/Post"):
        refused = answer(channel, method, seat, GARBAGE[1])
        assert refused == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.usefixtures("sessions")
def test_nobody_can_leave_with_a_seat_that_is_not_his(channel: grpc.Channel) -> None:
    for seat in ("", "0" * 32):
        AggregatorStub(channel).Leave(pb.LeaveRequest(seat=seat), timeout=SECONDS)


def test_nobody_can_take_a_seat_that_is_taken(
    sessions: list[gradwire.Session], channel: grpc.Channel, nodes: Cluster
) -> None:
    described = [query.describe(address) for address in nodes.addresses]
    request = pb.JoinRequest(
        protocol=PROTOCOL, generation=sessions[0].generation, rank=1, world_size=2, node=1
    )
    for rank, node in enumerate(described):
        request.nodes.add(id=node.node_id, address=node.address, host=node.host, ranks=[rank])
    other = pb.JoinRequest()
    other.CopyFrom(request)
    other.nodes[0].address = "127.0.0.1:1"
    for attempt in (request, other):
        with pytest.raises(grpc.RpcError) as caught:
            AggregatorStub(channel).Join(attempt, timeout=SECONDS)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_a_peer_that_is_none_is_refused(
    sessions: list[gradwire.Session], channel: grpc.Channel
) -> None:
    chunk_bytes = AggregatorStub(channel).Describe(pb.DescribeRequest()).chunk_bytes
    honest = peer_pb2.Hello(
        protocol=PROTOCOL,
        generation=sessions[0].generation,
        node=0,
        chunk_bytes=chunk_bytes,
    )
    hellos = [honest]
    for field, value in {"protocol": 99, "node": 1, "chunk_bytes": 4096}.items():
        wrong = peer_pb2.Hello()
        wrong.CopyFrom(honest)
        setattr(wrong, field, value)
        hellos.append(wrong)
    frames = [peer_pb2.Frame(hello=hello).SerializeToString() for hello in hellos]
    abort = peer_pb2.Abort(failure=pb.Failure(scope=pb.Failure.SCOPE_JOB, reason="for fun"))
    poison = peer_pb2.Frame(abort=abort).SerializeToString()
    for frame in frames:
        refused = answer(channel, "Peer/Exchange", frame, poison)
        assert refused == grpc.StatusCode.INVALID_ARGUMENT
    for garbage in GARBAGE[1:3]:
        refused = answer(channel, "Peer/Exchange", garbage, poison)
        assert refused == grpc.StatusCode.INVALID_ARGUMENT
