"""Any standard gRPC client can talk to the daemon: plain stubs, health checking, reflection."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gradwire_ops import query
from gradwire_ops.cluster import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SERVICES = ["gradwire.v1.Aggregator", "gradwire.v1.Peer"]
SECONDS = 10

# Generated without types.
HealthStub: Any = health_pb2_grpc.HealthStub
ReflectionStub: Any = reflection_pb2_grpc.ServerReflectionStub


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster(1) as nodes:
        yield query.describe(nodes.addresses[0]).address


@pytest.fixture
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        yield channel


def generate_stubs(folder: Path) -> None:
    protos = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    output = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *output, *protos],
        check=True,
        timeout=60,
    )
    # Packages proper, so that they come before our client of the same name.
    for package in (folder / "gradwire", folder / "gradwire" / "v1"):
        (package / "__init__.py").touch()


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None,
    reason="grpcio-tools, which generates the stubs, is not installed",
)
def test_two_ranks_with_nothing_but_generated_stubs_get_the_mean(
    address: str, tmp_path: Path
) -> None:
    generate_stubs(tmp_path)
    ours = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    result = subprocess.run(
        [sys.executable, "-m", "plain_client", address],
        env={**ours, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROGRAMS}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    middle = (1.5 + 5.0 + answer["count"] - 2) / answer["count"]
    assert answer["means"] == [[1.5, 1.0, 1.0, 5.0, pytest.approx(middle)]] * 2
    assert answer["ours"] == []
    assert list(query.status(address).jobs) == []


@pytest.mark.parametrize("service", ["", *SERVICES])
def test_health_checking_says_serving(channel: grpc.Channel, service: str) -> None:
    stub = HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    answer = stub.Check(request, timeout=SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_health_checking_knows_no_other_service(channel: grpc.Channel) -> None:
    stub = HealthStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=SECONDS)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def reflect(
    channel: grpc.Channel, question: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    answers = ReflectionStub(channel).ServerReflectionInfo(iter([question]), timeout=SECONDS)
    answer: reflection_pb2.ServerReflectionResponse = next(iter(answers))
    return answer


def test_reflection_lists_the_services(channel: grpc.Channel) -> None:
    answer = reflect(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in answer.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize("service", SERVICES)
def test_reflection_has_the_contract_of_each_service(
    channel: grpc.Channel, service: str
) -> None:
    question = reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)
    answer = reflect(channel, question)
    assert len(answer.file_descriptor_response.file_descriptor_proto) >= 1
