"""Streams between nodes with certificates: who gets one, and what new files change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gradwire_ops.certs_authority import Authority
from gradwire_proto import certificates
from gradwire_proto.v1 import peer_pb2
from gradwire_server.errors import StartError, StrangerError
from gradwire_server.group import Node
from gradwire_server.testing_links import PATIENCE_SECONDS
from gradwire_server.transport import credentials
from gradwire_server.transport.credentials import PLAIN, Certified, Plain
from gradwire_server.transport.dialling import METHOD, dial

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

HELLO = peer_pb2.Frame(hello=peer_pb2.Hello(node=1)).SerializeToString()
LOOK_SECONDS = 0.02


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create()


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LOOK_SECONDS", LOOK_SECONDS)


def write(folder: Path, authority: Authority, *hosts: str, days: float = 1) -> Path:
    folder.mkdir(exist_ok=True)
    issued = authority.issue("n", hosts, days)
    files = (authority.certificate, issued.certificate, issued.key)
    for name, data in zip(certificates.NAMES, files, strict=True):
        (folder / name).write_bytes(data)
    return folder


@contextlib.asynccontextmanager
async def node(own: Plain, shown: list[Mapping[str, Any]]) -> AsyncIterator[str]:
    """The address of one that answers; what its callers have shown is added to `shown`."""

    async def answer(_: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        shown.append(context.auth_context())
        await context.read()
        await context.write(HELLO)

    server = grpc.aio.server()
    service, _, name = METHOD.strip("/").rpartition("/")
    handlers: dict[str, Any] = {name: grpc.stream_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = own.listen(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def call(address: str, own: Plain) -> None:
    """Open a stream, and end it."""
    stream = await dial((address, 0), HELLO, lambda _: None, PATIENCE_SECONDS, own)
    await stream.close()


@contextlib.asynccontextmanager
async def watched(own: Certified) -> AsyncIterator[None]:
    watch = asyncio.create_task(own.watch())
    try:
        yield
    finally:
        watch.cancel()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():  # noqa: ASYNC110 - nothing says when
            await asyncio.sleep(LOOK_SECONDS)


def names(shown: Mapping[str, Any]) -> list[bytes]:
    return list(shown["x509_subject_alternative_name"])


def test_a_called_node_vouches_only_for_who_has_the_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    async def run() -> None:
        own = Certified(write(tmp_path / "a", authority, "127.0.0.1", "node-a"))
        shown: list[Mapping[str, Any]] = []
        async with node(own, shown) as address:
            await call(address, own)
        for host in ("127.0.0.1:7", "node-a:7"):
            own.vouch(Node("n", host, "h", (0,), (host,)), shown[0])
        # The further networks of a node are as good as the first.
        own.vouch(Node("n", "10.0.0.9:7", "h", (0,), ("10.0.0.9:7", "node-a:7")), shown[0])
        with pytest.raises(StrangerError) as caught:
            own.vouch(Node("n", "10.0.0.9:7", "h", (0,), ("10.0.0.9:7",)), shown[0])
        assert "expected a certificate for 10.0.0.9, found one for" in str(caught.value)
        assert "node-a" in str(caught.value)
        with pytest.raises(StrangerError, match="certificate for no address, found"):
            own.vouch(Node("n", "no address", "h", (0,), ("no address",)), shown[0])
        assert await own.explain("no address") == ""
        # Over a Unix socket there is none.
        with pytest.raises(StrangerError, match="found none"):
            own.vouch(Node("n", "127.0.0.1:7", "h", (0,), ()), {})

    asyncio.run(run())


@pytest.mark.case("S01")
def test_who_has_no_good_certificate_opens_no_stream_and_is_told_why(
    authority: Authority, tmp_path: Path
) -> None:
    async def run() -> None:
        own = Certified(write(tmp_path / "a", authority, "127.0.0.1"))
        other = Certified(write(tmp_path / "b", Authority.create(), "127.0.0.1"))
        elsewhere = Certified(write(tmp_path / "c", authority, "10.0.0.9"))
        shown: list[Mapping[str, Any]] = []
        async with node(own, shown) as address:
            for caller, words in ((PLAIN, "without TLS"), (other, "another CA")):
                with pytest.raises(grpc.RpcError):
                    await call(address, caller)
                assert words in await caller.explain(address)
        async with node(elsewhere, shown) as address:
            with pytest.raises(grpc.RpcError):
                await call(address, own)
            assert "for 127.0.0.1, found one for 10.0.0.9" in await own.explain(address)
        async with node(PLAIN, shown) as address:
            with pytest.raises(grpc.RpcError):
                await call(address, own)
            assert "plain text" in await own.explain(address)
        assert shown == []

    asyncio.run(run())


@pytest.mark.case("S05")
def test_new_files_are_used_for_new_connections_in_both_directions(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def run() -> None:
        folder = write(tmp_path / "a", authority, "127.0.0.1", "old")
        own = Certified(folder)
        shown: list[Mapping[str, Any]] = []
        async with node(own, shown) as address, watched(own):
            await call(address, own)
            before = own.expires
            # The CA is another one, too: all three files are new, or the call would fail.
            write(folder, Authority.create(), "127.0.0.1", "new", days=9)
            await until(lambda: own.expires != before)
            await call(address, own)
        assert [b"old" in names(each) for each in shown] == [True, False]
        assert b"new" in names(shown[1])

    asyncio.run(run())
    (line,) = [line for line in caplog.messages if "new certificates" in line]
    assert "127.0.0.1, new until" in line


@pytest.mark.case("S05")
@pytest.mark.parametrize("broken", ["half", "gone", "mismatch", "expired"])
def test_broken_files_are_warned_of_once_and_change_nothing(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    def spoil(folder: Path) -> None:
        certificate = folder / "tls.crt"
        if broken == "half":
            certificate.write_bytes(certificate.read_bytes()[:200])
        elif broken == "gone":
            certificate.unlink()
        elif broken == "mismatch":
            certificate.write_bytes(authority.issue("n", ["127.0.0.1"], 1).certificate)
        else:
            write(folder, authority, "127.0.0.1", days=-1)

    async def run() -> None:
        folder = write(tmp_path / "a", authority, "127.0.0.1")
        own = Certified(folder)
        before = own.expires
        async with node(own, []) as address, watched(own):
            spoil(folder)
            await until(lambda: any("of no use" in line for line in caplog.messages))
            await asyncio.sleep(10 * LOOK_SECONDS)
            assert own.expires == before
            await call(address, own)
            write(folder, authority, "127.0.0.1", days=3)
            await until(lambda: own.expires != before)

    asyncio.run(run())
    warnings = [line for line in caplog.messages if "of no use" in line]
    assert len(warnings) == 1
    assert "going on with the old ones" in warnings[0]


def test_a_daemon_does_not_start_with_broken_files(
    authority: Authority, tmp_path: Path
) -> None:
    folder = write(tmp_path / "a", authority, "127.0.0.1", days=-1)
    with pytest.raises(StartError, match=f"certs={folder}: .*expired"):
        Certified(folder)
