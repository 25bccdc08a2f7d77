"""Daemons that ask for tokens: who has one for the job and the rank sits, and nobody else."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

import gradwire
from gradwire_ops import query
from gradwire_ops.cli import app
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import PROTOCOL
from gradwire_proto.tokens import FILE_VARIABLE, VARIABLE, Claim, make
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODES = 2
GENERATION = "0123456789abcdef"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "key"
    assert CliRunner().invoke(app, ["tokens", "init", str(path)]).exit_code == 0
    return path


@pytest.fixture(scope="module")
def nodes(key: Path) -> Iterator[Cluster]:
    settings = {"GRADWIRE_TOKEN_KEY": str(key), "GRADWIRE_LOG_LEVEL": "info"}
    with cluster(NODES, settings) as running:
        yield running


def issued(key: Path, *options: str) -> str:
    run = CliRunner().invoke(app, ["tokens", "issue", str(key), *options])
    assert run.exit_code == 0, run.output
    return run.stdout.strip()


@contextmanager
def job(nodes: Cluster) -> Iterator[list[gradwire.Session]]:
    store = dist.HashStore()

    def one(rank: int) -> gradwire.Session:
        return gradwire.connect(
            store=store, rank=rank, world_size=NODES, daemon=nodes.addresses[rank]
        )

    with ExitStack() as stack, ThreadPoolExecutor(NODES) as pool:
        yield [stack.enter_context(each) for each in pool.map(one, range(NODES))]


def mean(sessions: list[gradwire.Session]) -> list[float]:
    orders = [each.all_reduce(torch.tensor([each.rank + 1.0])) for each in sessions]
    return [order.wait().item() for order in orders]


def refusal(address: str, request: pb.JoinRequest, token: str | None) -> Any:  # noqa: ANN401
    """How a raw caller fares who may say what it likes."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
        AggregatorStub(channel).Join(request, timeout=20, metadata=metadata)
    return refused.value


def joining(generation: str, rank: int, nodes: Cluster) -> pb.JoinRequest:
    found = [query.describe(each) for each in nodes.addresses]
    places = [
        pb.Node(id=each.node_id, address=each.address, host="h", ranks=[node])
        for node, each in enumerate(found)
    ]
    # Whatever it says here of the job is nothing.
    return pb.JoinRequest(
        protocol=PROTOCOL,
        generation=generation,
        rank=rank,
        world_size=NODES,
        nodes=places,
        node=rank,
        job="honest",
    )


@pytest.mark.case("S01")
@pytest.mark.parametrize("how", ["file", "variable"])
def test_a_job_with_its_token_trains(
    nodes: Cluster, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    token = issued(key, "--job", "honest")
    if how == "file":
        (tmp_path / "token").write_text(f"{token}\n")
        monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "token"))
    else:
        monkeypatch.setenv(VARIABLE, token)
    with job(nodes) as sessions:
        assert mean(sessions) == [1.5, 1.5]
    log = (nodes.folder / "node1.log").read_text()
    assert "rank 1 of 2 joined generation" in log
    assert "of job honest from" in log
    assert token not in log


@pytest.mark.case("S01")
def test_who_has_no_token_or_an_old_one_is_not_known(nodes: Cluster, key: Path) -> None:
    secret = key.read_bytes().strip()
    request = joining(GENERATION, 0, nodes)
    old = make(secret, Claim("honest"), int(time.time()) - 10)
    for token in (
        None,
        "",
        "nonsense",
        make(b"another key of 32 bytes or more.", Claim("a")),
        old,
    ):
        refused = refusal(nodes.addresses[0], request, token)
        assert refused.code() == grpc.StatusCode.UNAUTHENTICATED
        assert "gradwire tokens issue" in refused.details()
    with pytest.raises(gradwire.ConnectError, match="UNAUTHENTICATED"), job(nodes):
        pass
    assert query.status(nodes.addresses[0]).jobs == []


@pytest.mark.case("S01", "R18")
def test_a_token_of_other_ranks_or_of_another_job_opens_nothing_of_this_one(
    nodes: Cluster, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, issued(key, "--job", "honest"))
    with job(nodes) as sessions:
        request = joining(sessions[0].generation, 1, nodes)
        for token, word in (
            (issued(key, "--job", "honest", "--ranks", "0,2-9"), "ranks 0,2-9"),
            (issued(key, "--job", "other"), "is of job honest"),
        ):
            refused = refusal(nodes.addresses[1], request, token)
            assert refused.code() == grpc.StatusCode.PERMISSION_DENIED
            assert word in refused.details()
        # The same once more: its own token, for a seat that is taken.
        again = refusal(nodes.addresses[1], request, issued(key, "--job", "honest"))
        assert again.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert mean(sessions) == [1.5, 1.5]
    log = (nodes.folder / "node1.log").read_text()
    assert "refused " in log
    assert "is of job honest, the token is for job other" in log


def test_a_token_does_not_cross_a_network_in_the_open(
    key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, issued(key, "--job", "honest"))
    run = CliRunner().invoke(
        app, ["serve", "--listen", "0.0.0.0:0", "--insecure", "--token-key", str(key)]
    )
    assert run.exit_code == 2
    assert "in the open" in run.output
    from gradwire import _token

    with pytest.raises(gradwire.ConnectError, match="without certificates"):
        _token.metadata("192.0.2.1:50700")
    assert len(_token.metadata("127.0.0.1:50700")) == 1
