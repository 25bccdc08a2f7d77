"""What a daemon gives is limited; over that it says so, and nobody else notices."""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CALLS, JOBS = 200, 2
CHUNK_BYTES = 1 << 20
LARGEST_BYTES = 8 << 20
"""Of any message that a daemon takes."""
GROWTH_BYTES = 64 << 20


@pytest.fixture(scope="module")
def limited() -> Iterator[Cluster]:
    settings = {
        "GRADWIRE_MAX_CALLS": str(CALLS),
        "GRADWIRE_MAX_JOBS": str(JOBS),
        "GRADWIRE_MAX_MEMORY": str(30 << 20),
        "GRADWIRE_CHUNK_BYTES": str(CHUNK_BYTES),
    }
    with cluster(1, settings) as running:
        yield running


@pytest.fixture(scope="module")
def port(limited: Cluster) -> str:
    """Where others than this node's ranks would come from."""
    with grpc.insecure_channel(limited.addresses[0]) as channel:
        describe = channel.unary_unary(
            "/gradwire.v1.Aggregator/Describe",
            request_serializer=pb.DescribeRequest.SerializeToString,
            response_deserializer=pb.DescribeResponse.FromString,
        )
        return str(describe(pb.DescribeRequest(), timeout=10).address)


def alone(address: str, **wishes: Any) -> gradwire.Session:  # noqa: ANN401
    return gradwire.connect(
        store=dist.HashStore(), rank=0, world_size=1, daemon=address, **wishes
    )


def test_one_generation_too_many_is_refused_and_may_come_later(limited: Cluster) -> None:
    (address,) = limited.addresses
    with ExitStack() as stack:
        sessions = [stack.enter_context(alone(address)) for _ in range(JOBS)]
        with pytest.raises(gradwire.GradwireError, match=r"2 generations .* --max-jobs"):
            alone(address, connect_timeout=5)
        for session in sessions:
            assert session.all_reduce(torch.ones(3)).wait().tolist() == [1.0] * 3
    deadline = time.monotonic() + 10
    while True:
        # The daemon hears within moments that they have left.
        try:
            alone(address, connect_timeout=5).close()
        except gradwire.GradwireError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def test_a_stranger_with_thousands_of_streams_is_refused_and_the_job_goes_on(
    limited: Cluster, port: str
) -> None:
    (address,) = limited.addresses
    with alone(address) as session, closing(grpc.insecure_channel(port)) as channel:
        idle = threading.Event()

        def silent() -> Iterator[bytes]:
            idle.wait(60)
            yield from ()

        post: Any = channel.stream_stream("/gradwire.v1.Aggregator/Post")
        calls: list[Any] = []
        try:
            # Their threads are this test's; the daemon sees what a stranger of any kind sends.
            calls = [post(silent()) for _ in range(2 * CALLS)]
            codes = [call.code() for call in calls[-10:]]
            assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * len(codes)
            assert "--max-calls" in calls[-1].details()
            assert session.all_reduce(torch.ones(3)).wait().tolist() == [1.0] * 3
        finally:
            for call in calls:
                call.cancel()
            idle.set()
        deadline = time.monotonic() + 10
        while post(iter([b"nonsense"])).code() != grpc.StatusCode.INVALID_ARGUMENT:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.case("S07")
@pytest.mark.parametrize("compressed", [True, False], ids=["a bomb", "as it is"])
def test_a_message_larger_than_any_of_ours_is_refused_before_it_takes_memory(
    limited: Cluster, port: str, compressed: bool
) -> None:
    daemon = psutil.Process(limited.daemons[0].pid)
    before = daemon.memory_info().rss
    options = [("grpc.max_send_message_length", -1)]
    codes = {
        grpc.StatusCode.UNIMPLEMENTED if compressed else grpc.StatusCode.RESOURCE_EXHAUSTED
    }
    how = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    with (
        alone(limited.addresses[0]) as session,
        grpc.insecure_channel(port, options) as channel,
    ):
        post: Any = channel.stream_stream("/gradwire.v1.Aggregator/Post")
        for size in (LARGEST_BYTES + 1, 256 << 20):
            call = post(iter([bytes(size)]), timeout=30, compression=how)
            assert {call.code()} == codes
        assert session.all_reduce(torch.ones(3)).wait().tolist() == [1.0] * 3
    assert daemon.memory_info().rss < before + GROWTH_BYTES


@pytest.mark.case("S02")
def test_a_pickle_is_bytes_like_any_other(limited: Cluster, port: str, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    evil = pickle.dumps(Evil())
    with alone(limited.addresses[0]) as session, grpc.insecure_channel(port) as channel:
        for method in ("Aggregator/Post", "Aggregator/Reduce", "Peer/Exchange"):
            call: Any = channel.stream_stream(f"/gradwire.v1.{method}")
            bearing = (("authorization", "Bearer x"), ("evil-bin", evil))
            answer = call(iter([evil]), timeout=30, metadata=bearing)
            assert answer.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert session.all_reduce(torch.ones(3)).wait().tolist() == [1.0] * 3
    assert list(tmp_path.iterdir()) == []
