"""A job over two hosts, which are network namespaces here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gradwire_ops import certs

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = Path(__file__).parent / "programs"
OURS = {name: text for name, text in os.environ.items() if not name.startswith("GRADWIRE_")}
ADDRESSES = ("10.231.7.1", "10.231.7.2")
SECONDS = 60

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and iproute2",
)


def ip(*arguments: str) -> None:
    command = ["ip", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if result.returncode:
        pytest.skip(f"{' '.join(command)}: {result.stderr.strip()}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[str]]:
    """Two namespaces that reach each other, and nothing else."""
    names = [f"gradwire-{os.getpid()}-{host}" for host in range(2)]
    ends = [f"gw{os.getpid()}n{host}" for host in range(2)]
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=True)
        peer = ("peer", "name", ends[1], "netns", names[1])
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", *peer)
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            for link in ("lo", end):
                ip("-n", name, "link", "set", link, "up")
        yield names


def run(hosts: list[str], temporary: Path, **settings: str) -> list[list[dict[str, Any]]]:
    """What a rank on each host says; no daemon runs there."""
    with ExitStack() as stack:
        ranks = []
        for rank, host in enumerate(hosts):
            environment = {
                **OURS,
                "PYTHONPATH": str(PROGRAMS),
                "TMPDIR": str(temporary),
                "GRADWIRE_NODE": host,
                "GRADWIRE_CONNECT_TIMEOUT": "20",
                "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": "29500",
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                **settings,
            }
            command = ["ip", "netns", "exec", host, sys.executable, "-m", "rank", "3", "100000"]
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            ranks.append(process)
        outputs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


def test_a_job_over_two_hosts_is_refused_unless_it_is_wanted(
    hosts: list[str], tmp_path: Path
) -> None:
    for (event,) in run(hosts, tmp_path):
        assert event["kind"] == "ConnectError"
        assert "spans several hosts" in event["text"]
        daemons = [psutil.Process(pid) for pid in event["children"] if psutil.pid_exists(pid)]
        assert psutil.wait_procs(daemons, timeout=10)[1] == [], "a daemon outlived its job"
        for remedy in (
            "--certs",
            "GRADWIRE_CERTS",
            "gradwire serve --insecure",
            "GRADWIRE_INSECURE=1",
        ):
            assert remedy in event["text"]


def test_a_job_over_two_hosts_works_where_they_trust_each_other(
    hosts: list[str], tmp_path: Path
) -> None:
    for connected, *rounds in run(hosts, tmp_path, GRADWIRE_INSECURE="1"):
        assert connected["nodes"] == 2
        assert [(one["least"], one["most"]) for one in rounds] == [(1.5, 1.5)] * 3


def test_a_job_over_two_hosts_works_where_they_have_certificates(
    hosts: list[str], tmp_path: Path
) -> None:
    authority, folder = tmp_path / "ca", tmp_path / "certs"
    certs.init(authority, force=False)
    certs.issue(authority, certs.Order("both", ADDRESSES, 1), folder, force=False)
    for connected, *rounds in run(hosts, tmp_path, GRADWIRE_CERTS=str(folder)):
        assert connected["nodes"] == 2
        assert [(one["least"], one["most"]) for one in rounds] == [(1.5, 1.5)] * 3
