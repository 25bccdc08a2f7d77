"""What the doctor makes of facts: each planted fault is named by its check, and by no other."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

from gradwire_ops.cli import app
from gradwire_ops.doctor import report
from gradwire_ops.doctor.checks import host_findings, job_findings, link_findings
from gradwire_ops.doctor.facts import Host, Interface, Link, RdmaPort
from gradwire_ops.doctor.forecast import forecast
from gradwire_ops.doctor.host import rdma_ports
from gradwire_ops.doctor.links import answering, measure
from gradwire_ops.doctor.meeting import Meeting, Met
from gradwire_ops.doctor.topology import read_links, read_matrix

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gradwire_ops.doctor.finding import Finding

GOOD = Host(
    name="a",
    node="boot/1",
    ranks=[0, 1],
    address="192.0.2.1",
    named=["192.0.2.1"],
    interfaces=[Interface("eth0", ["192.0.2.1"], 1500)],
    versions={"gradwire": "0.1.0", "protocol": "5", "torch": "2.13.0", "Python": "3.11"},
    proxies=[],
    memlock=None,
    descriptors=20_000,
    shm_folder="/dev/shm",  # noqa: S108 - only named
    shm_room=1 << 30,
    memory_room=None,
    processors=2.0,
    sum_rate=10e9,
    codec_rates={"bf16": 9e9, "int8": 2e9},
    daemon="none runs",
    certificates="",
    gpus=["H", "H"],
    nvlink=[["X", "NV4"], ["NV4", "X"]],
    rdma=[RdmaPort("mlx5_0", 1, "ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)", ["eth0"])],
    master="a",
    master_addresses=["192.0.2.1"],
)
OTHER = replace(GOOD, name="b", node="boot/2", ranks=[2, 3], address="192.0.2.2")
DOWN = RdmaPort("mlx5_0", 1, "DOWN", "InfiniBand", "10 Gb/sec", ["ib0"])
LINK = Link("a", "b", rate=118e6, round_trip=0.0002, path_mtu=1500)
BACK = replace(LINK, source="b", target="a")


def wrong(findings: Sequence[Finding]) -> dict[str, str]:
    bad = [each for each in findings if each.verdict in {"warning", "failure"}]
    assert all(each.remedy for each in bad)
    assert not any(each.remedy for each in findings if each not in bad)
    return {each.check: each.verdict for each in bad}


def all_findings(hosts: Sequence[Host], links: Sequence[Link] = ()) -> list[Finding]:
    return [
        *(each for host in hosts for each in host_findings(host, alone=False)),
        *job_findings(hosts, 4),
        *link_findings(links),
    ]


def test_a_healthy_job_has_nothing_to_be_done() -> None:
    assert wrong(all_findings([GOOD, OTHER], [LINK, BACK])) == {}


@pytest.mark.parametrize(
    ("fault", "check", "verdict"),
    [
        ({"shm_room": 40 << 20}, "shared memory", "failure"),
        ({"memory_room": 40 << 20}, "shared memory", "failure"),
        ({"descriptors": 256}, "open files", "warning"),
        ({"codec_rates": {"bf16": 9e9, "int8": 0.1e9}}, "codecs", "warning"),
        ({"named": ["127.0.1.1"]}, "own name", "warning"),
        ({"named": []}, "own name", "warning"),
        ({"certificates": "expired", "certificates_wrong": True}, "certificates", "failure"),
        ({"nvlink": [["X", "SYS"], ["SYS", "X"]]}, "NVLink", "warning"),
        ({"rdma": [DOWN]}, "RDMA", "failure"),
        ({"rdma": [replace(DOWN, state="ACTIVE", interfaces=[])]}, "RDMA", "warning"),
        ({"memlock": 8 << 20}, "locked memory", "failure"),
        ({"versions": {**GOOD.versions, "protocol": "4"}}, "versions", "failure"),
        ({"versions": {**GOOD.versions, "torch": "2.5.0"}}, "versions", "warning"),
        ({"ranks": [0, 3]}, "ranks", "failure"),
        ({"ranks": [2, 4]}, "ranks", "failure"),
        ({"master_addresses": ["127.0.0.1"]}, "MASTER_ADDR", "failure"),
        ({"master_addresses": []}, "MASTER_ADDR", "failure"),
        ({"master": "c"}, "MASTER_ADDR", "failure"),
    ],
)
def test_a_fault_of_a_host_is_named_by_its_check_alone(
    fault: dict[str, Any], check: str, verdict: str
) -> None:
    assert wrong(all_findings([GOOD, replace(OTHER, **fault)])) == {check: verdict}


@pytest.mark.parametrize(
    ("fault", "check", "verdict"),
    [
        ({"error": "refused: nothing listens at b", "rate": 0.0}, "link", "failure"),
        ({"rate": 20e6}, "link", "warning"),
        ({"path_mtu": 1400}, "path MTU", "warning"),
        ({"clock_ahead": -7.0}, "clock", "warning"),
    ],
)
def test_a_fault_of_a_link_is_named_by_its_check_alone(
    fault: dict[str, Any], check: str, verdict: str
) -> None:
    more = [replace(LINK, target="c"), replace(LINK, source="c")]
    found = wrong(list(link_findings([replace(LINK, **fault), BACK, *more])))
    assert found == {check: verdict}


def test_a_host_without_special_hardware_is_told_so_and_lacks_nothing() -> None:
    plain = replace(GOOD, gpus=[], nvlink=[], rdma=[], memlock=8 << 20, master="")
    found = list(host_findings(plain, alone=True))
    assert wrong(found) == {}
    absent = {each.check for each in found if each.verdict == "absent"}
    assert absent == {"GPUs", "NVLink", "RDMA", "certificates"}


# -- how GPUs are connected

TOPOLOGY = """
\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV12\tSYS\tPXB\t0-31\t0
GPU1\tNV12\t X \tPIX\tNODE\t0-31\t0
GPU2\tSYS\tPIX\t X \tSYS\t32-63\t1
NIC0\tPXB\tNODE\tSYS\t X

Legend:
  X    = Self
"""


def test_the_matrix_of_nvidia_smi_is_read() -> None:
    text = TOPOLOGY.replace("\x1b[4mGPU0", "\t\x1b[4mGPU0")
    assert read_matrix(text) == [
        ["X", "NV12", "SYS"], ["NV12", "X", "PIX"], ["SYS", "PIX", "X"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "no GPUs", "\tGPU0\tGPU1\nGPU0\tX\tNV1\n", "\tGPU0\nGPU0\tQ"]
)
def test_what_is_no_matrix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_matrix(text)


class Nvml:
    """As pynvml has it: GPU 0 and 1 share two NVLinks, 2 has none; all are below one switch."""

    NVML_NVLINK_MAX_LINKS = 3
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

    class NVMLError(Exception):
        pass

    def __init__(self, ends: dict[str, list[str]]) -> None:
        self._ends = ends

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:  # noqa: ANN401, N802
        return SimpleNamespace(busId=handle)

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:  # noqa: N802
        if link >= len(self._ends[handle]):
            raise self.NVMLError
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: str, link: int) -> int:  # noqa: N802
        return 2 if self._ends[handle][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: str, link: int) -> Any:  # noqa: ANN401, N802
        return SimpleNamespace(busId=self._ends[handle][link])

    def nvmlDeviceGetTopologyCommonAncestor(self, _: str, __: str) -> int:  # noqa: N802
        return 40


def test_the_same_is_heard_from_nvml() -> None:
    pair = Nvml({"0": ["1", "1"], "1": ["0", "0"], "2": []})
    assert read_links(pair, ["0", "1", "2"]) == [
        ["X", "NV2", "NODE"], ["NV2", "X", "NODE"], ["NODE", "NODE", "X"],
    ]  # fmt: skip
    switched = Nvml({"0": ["switch"] * 3, "1": ["switch"] * 3})
    assert read_links(switched, ["0", "1"]) == [["X", "NV3"], ["NV3", "X"]]


def test_rdma_ports_are_read_from_the_kernel(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (tmp_path / "mlx5_0" / "device" / "net" / "ib0").mkdir(parents=True)
    for name, text in (
        ("state", "4: ACTIVE\n"),
        ("link_layer", "InfiniBand\n"),
        ("rate", "100 Gb/sec (4X EDR)\n"),
    ):
        (port / name).write_text(text)
    assert rdma_ports(tmp_path) == [
        RdmaPort("mlx5_0", 1, "ACTIVE", "InfiniBand", "100 Gb/sec (4X EDR)", ["ib0"])
    ]
    assert rdma_ports(tmp_path / "missing") == []


# -- what a step will cost


def test_the_forecast_is_the_bound_over_the_slowest_node() -> None:
    assert forecast([GOOD], [], 1) is None
    slow = [replace(LINK, target="c", rate=59e6), replace(LINK, source="c", rate=59e6)]
    third = replace(GOOD, name="c")
    found = forecast([GOOD, OTHER, third], [LINK, BACK, *slow], 118_000_000)
    assert found is not None
    assert found.seconds["exact"] == pytest.approx(2 * 2 / 3 * 2 + 0.0004)
    assert found.seconds["bf16"] == pytest.approx(2 / 3 * 2 + 0.0004)
    (unequal,) = [each for each in found.settings if "GRADWIRE_BANDWIDTH" in each]
    assert unequal.startswith("on c: GRADWIRE_BANDWIDTH=472mbit")


# -- together


def test_a_way_is_measured_and_one_that_is_closed_is_named() -> None:
    with answering("127.0.0.1") as port:
        link = measure("a", "b", "127.0.0.1", port, 0.1)
        again = measure("a", "b", "127.0.0.1", port, 0.1)
    for each in (link, again):
        assert each.error == ""
        assert each.rate > 1e6
        assert 0 < each.round_trip < 1
        assert abs(each.clock_ahead) < 1
    closed = measure("a", "b", "127.0.0.1", port, 0.1)
    assert closed.error.startswith("refused: nothing listens at 127.0.0.1:")


def test_the_processes_of_a_job_find_out_together() -> None:
    store = dist.HashStore()
    nodes = ["x", "x", "y"]
    met: dict[int, Met] = {}
    codes: dict[int, int] = {}

    def one(rank: int) -> None:
        meeting = Meeting(store, rank, len(nodes), nodes[rank])

        def look(ranks: list[int]) -> Host:
            return replace(
                GOOD, name=nodes[rank], node=nodes[rank], ranks=ranks, address="127.0.0.1"
            )

        met[rank] = meeting.find_out(look, 0.05, lambda _: None)
        codes[rank] = meeting.agree(1 if meeting.reports else None)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(nodes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == {0: 1, 1: 1, 2: 1}
    assert met[0] == met[1] == met[2]
    assert sorted(rank for host in met[0].hosts for rank in host.ranks) == [0, 1, 2]
    ways = {(link.source, link.target): link.error for link in met[0].links}
    assert ways == {("x", "y"): "", ("y", "x"): ""}


def test_the_rates_are_drawn(tmp_path: Path) -> None:
    report.plot(tmp_path / "heat.png", ["a", "b"], [LINK, BACK])
    assert (tmp_path / "heat.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_speaks_to_people_and_to_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    spoken = CliRunner().invoke(app, ["doctor", "--peers", "127.0.0.1:1"])
    assert spoken.exit_code == 1
    assert "refused: nothing" in spoken.output
    document = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    checks = {each["check"]: each["verdict"] for each in document["findings"]}
    assert checks["shared memory"] == "ok"
    assert CliRunner().invoke(app, ["doctor", "--model", "big"]).exit_code == 2
