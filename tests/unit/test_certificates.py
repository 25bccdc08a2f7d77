"""Folders of certificates: what is made, what is said of them, and what is found wrong."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization as s
from typer.testing import CliRunner

from gradwire_ops.certs_authority import Authority
from gradwire_ops.cli import app
from gradwire_proto import certificates
from gradwire_proto.certificates import CertificateError, Files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

HOSTS = ["node1.cluster", "10.0.0.1", "fd00::1"]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create()


@pytest.fixture(scope="module")
def stranger() -> Authority:
    return Authority.create()


def files(authority: Authority, *hosts: str, days: float = 1) -> Files:
    issued = authority.issue("n", hosts or ("127.0.0.1",), days)
    return Files(authority.certificate, issued.certificate, issued.key)


def locked(key: bytes) -> bytes:
    """The same key, with a password."""
    lock = s.BestAvailableEncryption(b"secret")
    read = s.load_pem_private_key(key, None)
    return read.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, lock)


def gradwire(*arguments: object) -> tuple[int, str]:
    """Exit code, and all that it says."""
    result = CliRunner().invoke(app, ["certs", *map(str, arguments)])
    return result.exit_code, result.output


# -- what a folder is worth


def test_a_folder_says_whom_it_names_and_until_when(authority: Authority) -> None:
    facts = certificates.inspect(files(authority, *HOSTS, days=2))
    assert sorted(facts.names) == sorted(HOSTS)
    assert facts.expires - time.time() == pytest.approx(2 * 86400, abs=60)


@pytest.mark.case("S05")
def test_files_that_do_not_hold_together_are_refused_for_their_reason(
    authority: Authority, stranger: Authority
) -> None:
    good, other = files(authority), files(stranger)
    both_roles = "for clients and servers"
    wrong = [
        (good._replace(key=other.key), "tls.key does not belong to tls.crt"),
        (good._replace(ca=other.ca), both_roles),
        (good._replace(certificate=good.certificate[:99]), "only a part"),
        (good._replace(key=b""), "only a part"),
        (good._replace(ca=good.ca[:50]), "ca.crt holds no certificate"),
        (files(authority, days=-1), "expired"),
        # A CA's own certificate is for no connection.
        (good._replace(certificate=authority.certificate, key=authority.key), both_roles),
    ]
    assert certificates.inspect(good).names == ("127.0.0.1",)
    for each, words in wrong:
        with pytest.raises(CertificateError, match=words):
            certificates.inspect(each)


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    authority: Authority,
) -> None:
    good = files(authority)
    with pytest.raises(CertificateError, match="password"):
        certificates.inspect(good._replace(key=locked(good.key)))


def test_a_folder_that_lacks_a_file_is_told_which(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"ca\.crt: No such file"):
        certificates.read(tmp_path)


@pytest.mark.parametrize(
    ("names", "host", "covered"),
    [
        (["a.example"], "A.example.", True),
        (["a.example"], "b.example", False),
        (["*.example"], "a.example", True),
        (["*.example"], "a.b.example", False),
        (["*.example"], "example", False),
        (["0:0:0:0:0:0:0:1"], "::1", True),
        (["10.0.0.1"], "10.0.0.10", False),
        (["*.0.0.1"], "10.0.0.1", False),
        ([], "a.example", False),
    ],
)
def test_a_certificate_covers_the_hosts_that_it_names(
    names: list[str], host: str, covered: bool
) -> None:
    assert certificates.covers(names, host) is covered


# -- why a connection does not come about


@contextmanager
def host(context: ssl.SSLContext | None) -> Iterator[Callable[[ssl.SSLContext], Any]]:
    """How to knock at a host that takes calls with this context, or speaks no TLS."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                try:
                    if context is None:
                        line.sendall(b"\0\0\x12\4\0\0\0\0\0" + bytes(18))
                        line.recv(1 << 12)
                        continue
                    with context.wrap_socket(line, server_side=True) as shaken:
                        shaken.sendall(b"welcome")
                        shaken.recv(1)
                except OSError:
                    continue

    def knock(with_: ssl.SSLContext) -> Mapping[str, Any]:
        with (
            socket.create_connection(listener.getsockname(), 5) as line,
            with_.wrap_socket(line, server_hostname="127.0.0.1") as shaken,
        ):
            return certificates.hear(shaken)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield knock
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def taking(own: Files, folder: Path) -> ssl.SSLContext:
    """What a host with these files asks of its callers."""
    for name, data in zip(certificates.NAMES, own, strict=True):
        (folder / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.case("S01")
@pytest.mark.filterwarnings("error")
def test_why_a_host_and_we_do_not_agree_is_said_with_what_was_expected_and_found(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    ours, theirs = files(authority), files(stranger)
    both = authority.certificate + stranger.certificate
    cases = [
        (ours, ours, []),
        (None, ours, ["without TLS", "GRADWIRE_CERTS"]),
        (ours, theirs, ["from the CA in our ca.crt", "another CA has issued"]),
        (theirs._replace(ca=both), ours, ["refused our certificate", "its ca.crt"]),
        (files(authority, days=-1), ours, ["refused our certificate", "expired"]),
        (ours, files(authority, days=-1), ["certificate of 127.0.0.1 has expired", "renew"]),
        (
            ours,
            files(authority, "node2", "10.9.9.9"),
            ["expected a certificate for 127.0.0.1", "node2, 10.9.9.9", "--host 127.0.0.1"],
        ),
    ]
    for own, hosts, words in cases:
        with host(taking(hosts, tmp_path)) as knock:
            text = certificates.explain("127.0.0.1", own, knock)
        assert bool(text) == bool(words)
        for each in words:
            assert each in text
    with host(None) as knock:
        assert "speaks plain text" in certificates.explain("127.0.0.1", ours, knock)
        assert certificates.explain("127.0.0.1", None, knock) == ""


# -- the command


def test_a_ca_issues_renews_and_shows(tmp_path: Path) -> None:
    ca, node = tmp_path / "ca", tmp_path / "node"
    assert gradwire("init", ca)[0] == 0
    hosts = [part for each in HOSTS for part in ("--host", each)]
    assert gradwire("issue", ca, "node1", *hosts, "--out", node)[0] == 0
    assert {path.name for path in node.iterdir()} == {"ca.crt", "tls.crt", "tls.key"}
    for key in (ca / "ca.key", node / "tls.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    code, said = gradwire("show", node)
    assert code == 0
    for words in (*HOSTS, "CN=node1", "issuer: CN=Gradwire CA", "valid until: ", "good"):
        assert words in said
    before = certificates.read(node)
    assert gradwire("renew", ca, node, "--days", 5, "--keep-key")[0] == 0
    kept = certificates.read(node)
    assert kept.key == before.key
    assert gradwire("renew", ca, node, "--days", 6)[0] == 0
    renewed = certificates.read(node)
    assert renewed.key != before.key
    first, second, third = map(certificates.inspect, (before, kept, renewed))
    assert first.names == second.names == third.names
    assert (first.expires - time.time()) / 86400 == pytest.approx(90, abs=0.1)
    assert (third.expires - second.expires) / 86400 == pytest.approx(1, abs=0.1)


def test_nothing_is_overwritten_unless_that_is_said(tmp_path: Path) -> None:
    ca, node = tmp_path / "ca", tmp_path / "node"
    issue = ("issue", ca, "n", "--host", "h", "--out", node)
    assert gradwire("init", ca)[0] == 0
    assert gradwire(*issue)[0] == 0
    before = {path: path.read_bytes() for path in (*ca.iterdir(), *node.iterdir())}
    for command in (("init", ca), issue):
        code, said = gradwire(*command)
        assert code == 1
        assert "--force" in said
    assert {path: path.read_bytes() for path in before} == before
    assert gradwire(*issue, "--force")[0] == 0
    assert (node / "tls.key").read_bytes() != before[node / "tls.key"]


def test_show_finds_what_is_wrong(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    good, other = files(authority), files(stranger)
    cases = [
        (good, 0, "verdict: good"),
        (good._replace(ca=other.ca + good.ca), 0, "verdict: good"),
        (good._replace(key=locked(good.key)), 1, "without a password"),
        (files(authority, days=-1), 1, "it has expired"),
        (good._replace(key=other.key), 1, "tls.key does not belong to tls.crt"),
        (good._replace(ca=other.ca), 1, "expected it to be issued by the CA in ca.crt"),
    ]
    for each, code, words in cases:
        for name, data in zip(certificates.NAMES, each, strict=True):
            (tmp_path / name).write_bytes(data)
        (tmp_path / "tls.key").chmod(0o600)
        found, said = gradwire("show", tmp_path)
        assert (found, words in said) == (code, True), said
    assert ("verdict" in said) is False
    for name, data in zip(certificates.NAMES, good, strict=True):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "tls.key").chmod(0o644)
    assert "chmod 600" in gradwire("show", tmp_path)[1]


def test_a_certificate_without_names_is_not_renewed(
    authority: Authority, tmp_path: Path
) -> None:
    """As one of another CA may be, which names its host as the subject only."""
    ca, node = tmp_path / "ca", tmp_path / "node"
    for folder, data in (
        (ca, {"ca.crt": authority.certificate, "ca.key": authority.key}),
        (node, dict(zip(certificates.NAMES, files(authority), strict=True))),
    ):
        folder.mkdir()
        for name, content in data.items():
            (folder / name).write_bytes(content)
    # The CA's own has none.
    (node / "tls.crt").write_bytes(authority.certificate)
    code, said = gradwire("renew", ca, node)
    assert code == 1
    assert "names no host" in said


@pytest.mark.parametrize("wrong", ["a b", "host:80", "", "a..b", "http://a"])
def test_a_host_that_is_none_is_refused(authority: Authority, wrong: str) -> None:
    with pytest.raises(ValueError, match="expected a name or an address"):
        authority.issue("n", [wrong], 1)


@pytest.mark.parametrize("fault", ["corrupt-chunk", "all"])
def test_a_drill_that_would_damage_nothing_is_refused(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(certificates.VARIABLE, "/certs")
    result = CliRunner().invoke(app, ["drill", fault])
    assert result.exit_code == 2
    assert f"unset {certificates.VARIABLE}" in result.output


def test_no_certificate_outlives_its_ca(authority: Authority) -> None:
    issued = authority.issue("n", ("127.0.0.1",), 100 * 365)
    of_ca = Authority.describe(authority.certificate).expires
    assert Authority.describe(issued.certificate).expires <= of_ca
