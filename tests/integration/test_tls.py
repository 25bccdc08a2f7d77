"""Real daemons with certificates: the right bits, no strangers, and new files in mid-job."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest
import torch
import torch.distributed as dist
from prometheus_client import CollectorRegistry

import gradwire
from gradwire_ops import query
from gradwire_ops.certs_authority import Authority
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto import PROTOCOL, certificates
from gradwire_proto.addresses import split_address
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub
from gradwire_server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 20
ELEMENTS = 600_000
OTHER_HOST = "127.0.0.9"


class Folders:
    """Certificates of one CA, in folders; made once, since none of it costs a test anything."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.authority = Authority.create()
        self.stranger = Authority.create()
        self.good = self.write("good", "127.0.0.1")
        """Of both nodes."""

    def write(
        self, name: str, *hosts: str, days: float = 1, by: Authority | None = None
    ) -> Path:
        folder, authority = self._root / name, by or self.authority
        folder.mkdir(exist_ok=True)
        issued = authority.issue(name, hosts, days)
        files = (authority.certificate, issued.certificate, issued.key)
        for file, data in zip(certificates.NAMES, files, strict=True):
            # As `gradwire certs` and Kubernetes do: never half a file.
            (folder / f"{file}.new").write_bytes(data)
            (folder / f"{file}.new").replace(folder / file)
        return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def nodes(folders: Folders) -> Iterator[Cluster]:
    settings = {
        "GRADWIRE_CERTS": str(folders.good),
        "GRADWIRE_LOG_LEVEL": "info",
        "GRADWIRE_METRICS_LISTEN": "127.0.0.1:0",
    }
    with cluster(2, settings) as running:
        yield running


@contextmanager
def job(
    addresses: list[str], connect_timeout: float | None = None
) -> Iterator[list[gradwire.Session]]:
    """One rank at each of these."""
    store = dist.HashStore()

    def one(rank: int) -> gradwire.Session:
        return gradwire.connect(
            store=store,
            rank=rank,
            world_size=len(addresses),
            daemon=addresses[rank],
            connect_timeout=connect_timeout,
        )

    with ExitStack() as stack, ThreadPoolExecutor(len(addresses)) as pool:
        yield [stack.enter_context(each) for each in pool.map(one, range(len(addresses)))]


def brought(rank: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))


def reduce(sessions: list[gradwire.Session]) -> list[torch.Tensor]:
    orders = [session.all_reduce(brought(session.rank)) for session in sessions]
    return [order.wait() for order in orders]


def tcp(nodes: Cluster, node: int) -> str:
    return query.describe(nodes.addresses[node]).address


def log_of(nodes: Cluster) -> str:
    return "".join(path.read_text() for path in sorted(nodes.folder.glob("*.log")))


def certificates_shown(address: str, folder: Path) -> bytes:
    """What a daemon shows in a handshake now."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    host, port = split_address(address)
    with (
        socket.create_connection((host, port), SECONDS) as line,
        context.wrap_socket(line, server_hostname=host) as shaken,
    ):
        return shaken.getpeercert(binary_form=True) or b""


# -- what holds with certificates


def test_a_job_over_tls_has_the_bits_that_it_has_without(
    nodes: Cluster, daemons: Cluster, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job(list(daemons.addresses[:2])) as sessions:
        plain = reduce(sessions)
    monkeypatch.setenv("GRADWIRE_CERTS", str(folders.good))
    # The second rank is a remote one: its tensors cross TLS, too.
    monkeypatch.setenv("GRADWIRE_SHM", "off")
    with job([nodes.addresses[0], tcp(nodes, 1)]) as sessions:
        assert sessions[1].path == "stream"
        found = [*reduce(sessions), *reduce(sessions)]
        status = query.status(tcp(nodes, 0))
    assert all(torch.equal(each, plain[0]) for each in found)
    assert [link.connected for each in status.jobs for link in each.links] == [True]


def test_the_metric_has_the_date_and_is_absent_without_certificates(
    nodes: Cluster, folders: Folders
) -> None:
    name = "gradwire_certificate_expiry_timestamp_seconds"
    metrics = query.status(nodes.addresses[0]).metrics
    with socket.create_connection(split_address(metrics), SECONDS) as line:
        line.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = b"".join(iter(lambda: line.recv(1 << 16), b"")).decode()
    (value,) = [row.split()[1] for row in page.splitlines() if row.startswith(name)]
    assert float(value) == certificates.inspect(certificates.read(folders.good)).expires
    families = Metrics(CollectorRegistry(), "0").registry.collect()
    (plain,) = [each for each in families if each.name == name]
    assert plain.samples == []


# -- strangers


@pytest.mark.case("S01")
@pytest.mark.parametrize("caller", ["none", "another CA", "expired"])
def test_a_caller_without_a_good_certificate_is_refused(
    nodes: Cluster, folders: Folders, monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    address = tcp(nodes, 0)
    if caller == "none":
        words = ["takes only callers with a certificate"]
        channel = grpc.insecure_channel(address)
    else:
        by = folders.stranger if caller == "another CA" else folders.authority
        days = -1 if caller == "expired" else 1
        folder = folders.write(caller, "127.0.0.1", days=days, by=by)
        _, certificate, key = certificates.read(folder)
        # It trusts the daemon, so that it is the daemon that refuses.
        trusted = folders.authority.certificate
        channel = grpc.secure_channel(
            address, grpc.ssl_channel_credentials(trusted, key, certificate)
        )
        monkeypatch.setenv("GRADWIRE_CERTS", str(folder))
        words = ["another CA"] if caller == "another CA" else ["tls.crt has expired", "renew"]
    with channel, pytest.raises(grpc.RpcError) as refused:
        AggregatorStub(channel).Describe(pb.DescribeRequest(), timeout=SECONDS)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(query.UnreachableError) as caught:
        query.status(address)
    with pytest.raises(gradwire.ConnectError) as no_seat:
        gradwire.connect(
            store=dist.HashStore(), rank=0, world_size=1, daemon=address, connect_timeout=1
        )
    for each in words:
        assert each in str(caught.value)
        assert each in str(no_seat.value)


@pytest.mark.case("S01")
def test_who_knows_the_ca_and_has_no_certificate_is_refused(
    nodes: Cluster, folders: Folders
) -> None:
    knowing = grpc.ssl_channel_credentials(folders.authority.certificate)
    channel = grpc.secure_channel(tcp(nodes, 0), knowing)
    with channel, pytest.raises(grpc.RpcError) as refused:
        AggregatorStub(channel).Describe(pb.DescribeRequest(), timeout=SECONDS)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.case("S01")
def test_the_certificate_of_another_node_opens_no_link(
    nodes: Cluster, folders: Folders
) -> None:
    """Before a payload is read; and the job beside it keeps its bits."""
    other = folders.write("other", OTHER_HOST)
    ca, certificate, key = certificates.read(other)
    own = grpc.ssl_channel_credentials(ca, key, certificate)
    with job(list(nodes.addresses)) as sessions:
        before = reduce(sessions)
        described = query.describe(nodes.addresses[1])
        hello = peer_pb2.Hello(
            protocol=PROTOCOL,
            generation=sessions[0].generation,
            node=0,
            chunk_bytes=described.chunk_bytes,
        )
        frames = [peer_pb2.Frame(hello=hello).SerializeToString(), b"\xff" * (1 << 20)]
        with grpc.secure_channel(described.address, own) as channel:
            stream: Any = channel.stream_stream("/gradwire.v1.Peer/Exchange")
            with pytest.raises(grpc.RpcError) as caught:
                list(stream(iter(frames), timeout=SECONDS))
        after = reduce(sessions)
        assert torch.equal(before[0], after[1])
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    for words in ("expected a certificate for 127.0.0.1", f"found one for {OTHER_HOST}"):
        assert words in (caught.value.details() or "")
        assert words in log_of(nodes)
    assert "refused a link from ipv4:127.0.0.1:" in log_of(nodes)


@pytest.mark.parametrize("named", ["called", "caller", "plain"])
def test_a_job_of_nodes_that_do_not_trust_each_other_says_what_was_expected_and_found(
    nodes: Cluster, folders: Folders, named: str
) -> None:
    """The node of the first rank calls that of the second."""
    other = folders.write("other", OTHER_HOST)
    settings = {} if named == "plain" else {"GRADWIRE_CERTS": str(other)}
    with cluster(1, settings) as lone:
        pair = [nodes.addresses[0], lone.addresses[0]]
        if named == "caller":
            pair.reverse()
        with pytest.raises(gradwire.ConnectError) as caught, job(pair, connect_timeout=2):
            pass
    expected = f"expected a certificate for 127.0.0.1, found one for {OTHER_HOST}"
    assert ("with certificates" if named == "plain" else expected) in str(caught.value)


# -- new files


def await_log(nodes: Cluster, words: str, count: int) -> None:
    end = time.monotonic() + SECONDS
    while log_of(nodes).count(words) < count:
        assert time.monotonic() < end, log_of(nodes)
        time.sleep(0.05)


@contextmanager
def training(sessions: list[gradwire.Session]) -> Iterator[list[bool]]:
    """Whether each step that ranks make within the block had the first one's bits."""
    first, stop = reduce(sessions), threading.Event()
    steps: list[bool] = []

    def train() -> None:
        while not stop.is_set():
            steps.append(all(torch.equal(each, first[0]) for each in reduce(sessions)))

    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train)
        try:
            yield steps
        finally:
            stop.set()
        trained.result(SECONDS)


@pytest.mark.case("S05")
def test_certificates_change_in_mid_job_and_no_step_fails(
    nodes: Cluster, folders: Folders
) -> None:
    address, mine = tcp(nodes, 1), folders.write("mine", "127.0.0.1")
    old = certificates_shown(address, mine)
    with job(list(nodes.addresses)) as sessions:
        with training(sessions) as steps:
            folders.write("good", "127.0.0.1", days=30)
            await_log(nodes, "new certificates from", 2)
            new = certificates_shown(address, mine)
            (folders.good / "tls.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\nMIIB")
            await_log(nodes, "are of no use, going on with the old ones", 2)
            assert certificates_shown(address, mine) == new != old
            folders.write("good", "127.0.0.1", days=20)
            await_log(nodes, "new certificates from", 4)
        assert len(steps) > 2
        assert all(steps)
    # Once a daemon and change.
    assert log_of(nodes).count("are of no use") == 2
    events = query.status(nodes.addresses[0]).events
    assert any("new certificates from" in event.text for event in events)
    with job(list(nodes.addresses)) as sessions:
        reduce(sessions)


# -- listening


@pytest.mark.case("S03")
@pytest.mark.parametrize("how", ["certs", "insecure"])
def test_listening_to_all_takes_certificates_or_a_word_that_is_warned_of(
    folders: Folders, how: str
) -> None:
    good = folders.write("all", "127.0.0.1")
    words = {"certs": str(good), "insecure": "1"}
    settings = {f"GRADWIRE_{how.upper()}": words[how], "GRADWIRE_LISTEN": "0.0.0.0:0"}
    with cluster(1, {**settings, "GRADWIRE_METRICS_LISTEN": "127.0.0.1:0"}) as lone:
        status = query.status(lone.addresses[0])
        daemon = psutil.Process(lone.daemons[0].pid)
        processes = [daemon, *daemon.children(recursive=True)]
        listening = {
            (each.laddr.ip, each.laddr.port)
            for process in processes
            for each in process.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        }
        _, port = split_address(status.address)
        # For all addresses gRPC takes the socket that IPv6 comes to as well.
        everywhere = {("0.0.0.0", port)} & listening or {("::", port)}  # noqa: S104
        assert listening == {*everywhere, split_address(status.metrics)}
        assert ("without certificates (insecure)" in log_of(lone)) == (how == "insecure")
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = AggregatorStub(channel).Describe.future(
                pb.DescribeRequest(), timeout=SECONDS
            )
            assert (call.exception() is None) == (how == "insecure")


def test_the_embedded_daemon_has_the_ranks_certificates(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Its address is the one towards the master.
    good = folders.write("embedded", "127.0.0.1", "localhost", socket.gethostname())
    monkeypatch.setenv("GRADWIRE_CERTS", str(good))
    monkeypatch.setenv("GRADWIRE_NODE", f"tls-{os.getpid()}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with gradwire.connect(store=dist.HashStore(), rank=0, world_size=1) as session:
        described = query.describe(session.daemon)
        assert described.certified
        assert not described.insecure
