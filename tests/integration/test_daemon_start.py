"""What a daemon does where another one is, or has been; and what it makes of its settings."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from gradwire_ops import query
from gradwire_ops.children import Child, stop
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = {name: text for name, text in os.environ.items() if not name.startswith("GRADWIRE_")}
LONG_AGO = time.time() - 3600


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for shared memory."""
    folder = Path(tempfile.mkdtemp(prefix="gradwire-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def serve(**settings: str) -> subprocess.CompletedProcess[str]:
    """A daemon that is expected not to start."""
    return subprocess.run(
        [sys.executable, "-m", "gradwire_server"],
        env={**OURS, **settings},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@contextmanager
def daemon(folder: Path, *command: str, **settings: str) -> Iterator[Child]:
    """A daemon that is ready, with its log in this folder."""
    log = folder / "daemon.log"
    child = Child("daemon", command or ["gradwire_server"], {**OURS, **settings}, log)
    try:
        end = time.monotonic() + 30
        while "ready: " not in log.read_text():
            assert child.exit_code is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.02)
        yield child
    finally:
        assert stop([child]) == []


def join(address: str) -> pb.JoinResponse:
    """The seat of a one-rank job whose rank is nobody."""
    described = query.describe(address)
    request = pb.JoinRequest(
        protocol=PROTOCOL, generation=os.urandom(8).hex(), world_size=1, shared_memory=True
    )
    request.nodes.add(id=described.node_id, address=described.address, ranks=[0])
    with grpc.insecure_channel(address) as channel:
        seat: pb.JoinResponse = AggregatorStub(channel).Join(request, timeout=10)
    return seat


@pytest.fixture(scope="module")
def first() -> Iterator[Cluster]:
    page = {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0", "GRADWIRE_METRICS_HOSTS": "a.example"}
    with cluster(1, page) as nodes:
        yield nodes


def test_the_page_has_the_names_that_its_operator_gave_it(first: Cluster) -> None:
    host, port = query.status(first.addresses[0]).metrics.split(":")
    answers = {}
    for name in ("a.example", "b.example"):
        line = HTTPConnection(host, int(port), timeout=10)
        with closing(line):
            line.request("GET", "/status.json", headers={"Host": name})
            answers[name] = line.getresponse().status
    assert answers == {"a.example": 200, "b.example": 421}


@pytest.mark.case("E15")
@pytest.mark.case("R16")
@pytest.mark.parametrize("what", ["address", "socket", "metrics"])
def test_two_daemons_can_not_share(first: Cluster, what: str, tmp_path: Path) -> None:
    taken = query.status(first.addresses[0])
    settings = {
        "GRADWIRE_LISTEN": "127.0.0.1:0",
        "GRADWIRE_METRICS_LISTEN": "127.0.0.1:0",
        "GRADWIRE_SOCKET": str(tmp_path / "second.sock"),
    }
    variable = {
        "address": "GRADWIRE_LISTEN",
        "socket": "GRADWIRE_SOCKET",
        "metrics": "GRADWIRE_METRICS_LISTEN",
    }[what]
    second = serve(**{**settings, variable: getattr(taken, what)})
    assert second.returncode == 1
    assert getattr(taken, what) in second.stderr
    assert "Traceback" not in second.stderr
    assert list(tmp_path.iterdir()) == []
    assert query.describe(first.addresses[0]).node_id == taken.node_id


@pytest.mark.case("E15")
@pytest.mark.case("R22")
def test_a_daemon_is_back_on_its_addresses_at_once_five_times(tmp_path: Path) -> None:
    path = tmp_path / "gradwire.sock"
    settings = {
        "GRADWIRE_LISTEN": "127.0.0.1:0",
        "GRADWIRE_METRICS_LISTEN": "127.0.0.1:0",
        "GRADWIRE_SOCKET": str(path),
    }
    for _ in range(5):
        with daemon(tmp_path, **settings) as child:
            status = query.status(f"unix:{path}")
            settings["GRADWIRE_LISTEN"] = status.address
            settings["GRADWIRE_METRICS_LISTEN"] = status.metrics
            # Connections that the daemon ends first, so that its ports linger.
            ports = [int(one.split(":")[1]) for one in (status.address, status.metrics)]
            lines = [socket.create_connection(("127.0.0.1", port)) for port in ports]
            join(status.address)
            child.signal(signal.SIGTERM)
            assert child.wait(10)
        assert child.exit_code == 0
        for line in lines:
            line.close()


def test_what_a_killed_daemon_left_is_removed_by_the_next(tmp_path: Path, memory: Path) -> None:
    path = tmp_path / "gradwire.sock"
    settings = {
        "GRADWIRE_LISTEN": "127.0.0.1:0",
        "GRADWIRE_METRICS_LISTEN": "",
        "GRADWIRE_SOCKET": str(path),
        "GRADWIRE_SHM_DIR": str(memory),
    }
    with daemon(tmp_path, **settings) as child:
        arena = Path(join(f"unix:{path}").arena.path)
        child.signal(signal.SIGKILL)
        assert child.wait(10)
    left = set(memory.iterdir())
    assert arena in left
    assert path.is_socket()
    for each in left:
        os.utime(each, (LONG_AGO, LONG_AGO))
    (memory / "of somebody else").touch()
    with daemon(tmp_path, **settings):
        assert query.describe(f"unix:{path}").protocol == PROTOCOL
        bell, other = sorted(memory.iterdir())
        assert bell not in left
        assert other.name == "of somebody else"
    assert not path.exists()


def test_what_another_daemon_uses_is_not_removed(tmp_path: Path, memory: Path) -> None:
    shared = {"GRADWIRE_SHM_DIR": str(memory)}
    own = {"GRADWIRE_LISTEN": "127.0.0.1:0", "GRADWIRE_METRICS_LISTEN": ""}
    with cluster(1, shared) as nodes:
        arena = Path(join(nodes.addresses[0]).arena.path)
        os.utime(arena, (LONG_AGO, LONG_AGO))
        used = set(memory.iterdir())
        with daemon(tmp_path, **own, **shared, GRADWIRE_SOCKET=str(tmp_path / "second.sock")):
            assert used < set(memory.iterdir())
        assert used == set(memory.iterdir())
    assert list(memory.iterdir()) == []


def test_a_daemon_that_is_just_starting_keeps_its_doorbell(
    tmp_path: Path, memory: Path
) -> None:
    # Bound, but not listening yet: nobody is there, as with one that was left behind.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bell:
        bell.bind(str(memory / "gradwire-starting.bell"))
        own = {"GRADWIRE_LISTEN": "127.0.0.1:0", "GRADWIRE_METRICS_LISTEN": ""}
        shared = {"GRADWIRE_SHM_DIR": str(memory)}
        with daemon(tmp_path, **own, **shared, GRADWIRE_SOCKET=str(tmp_path / "other.sock")):
            assert (memory / "gradwire-starting.bell").is_socket()


def test_every_mistake_in_the_environment_is_listed() -> None:
    result = serve(
        GRADWIRE_LISTEN="0.0.0.0:50700",
        GRADWIRE_METRICS_LISTEN="nowhere",
        GRADWIRE_SLOTS="1",
        GRADWIRE_CHUNK_BYTES="5001",
        GRADWIRE_SCHEDULE="star",
        GRADWIRE_SHM_DIR="/nowhere",
    )
    assert result.returncode == 2
    for name in ("insecure", "metrics_listen", "slots", "chunk_bytes", "schedule", "shm_dir"):
        assert name in result.stderr
    assert "--insecure" in result.stderr
    assert "Traceback" not in result.stderr


def test_flags_come_before_the_environment_before_the_file(tmp_path: Path) -> None:
    file, path = tmp_path / "gradwire.toml", tmp_path / "gradwire.sock"
    file.write_text(
        f'socket = "{path}"\nlisten = "127.0.0.1:0"\nmetrics_listen = ""\n'
        "slots = 4\nchunk_bytes = 8192\n"
    )
    command = ["gradwire_ops", "serve", "--config", str(file), "--slots", "8"]
    with daemon(tmp_path, *command, GRADWIRE_SLOTS="32", GRADWIRE_CHUNK_BYTES="4096"):
        seat = join(f"unix:{path}")
        assert (seat.slots, seat.chunk_bytes) == (8, 4096)


def test_a_mistake_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gradwire.toml"
    file.write_text("slotz = 4\nslots = 0\n")
    result = serve(GRADWIRE_CONFIG=str(file))
    assert result.returncode == 2
    for complaint in ("slotz=4", "slots=0"):
        assert complaint in result.stderr
    assert "Traceback" not in result.stderr
