"""Addresses of daemons: IPv6 in brackets, and proxies that are none of our business."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query
from gradwire_ops.cluster import cluster
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


def mean_of_two(addresses: list[str]) -> list[float]:
    """What two ranks at these daemons get for 1 and 2."""
    store = dist.HashStore()

    def one(rank: int) -> float:
        with gradwire.connect(
            store=store, rank=rank, world_size=2, daemon=addresses[rank], connect_timeout=15
        ) as session:
            return session.all_reduce(torch.tensor([rank + 1.0])).wait().item()

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.case("E10")
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_daemons_and_ranks_meet_over_ipv6() -> None:
    with cluster(2, {"GRADWIRE_LISTEN": "[::1]:0"}) as nodes:
        addresses = [query.describe(address).address for address in nodes.addresses]
        assert all(address.startswith("[::1]:") for address in addresses)
        assert mean_of_two(addresses) == [1.5, 1.5]


@pytest.mark.case("E10")
def test_a_rank_is_shown_the_form_of_an_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_DAEMON", "::1:50700")
    with pytest.raises(gradwire.ConnectError, match=r"\[::1\]:50700"):
        gradwire.connect(store=dist.HashStore(), rank=0, world_size=1)


def dead_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.case("E07")
def test_a_proxy_in_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.setenv(name, f"http://127.0.0.1:{dead_port()}")
        monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{dead_port()}")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with cluster(2) as nodes:
        address = query.describe(nodes.addresses[1]).address
        assert mean_of_two([nodes.addresses[0], address]) == [1.5, 1.5]
        # Without our options gRPC asks the proxy: so the test does test something.
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
            AggregatorStub(channel).Describe(pb.DescribeRequest(), timeout=2)
