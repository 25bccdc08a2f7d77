"""What a daemon shows to others over TCP, and asks of them: nothing, or certificates.

Everything that knows of TLS in the daemon is here. Unix sockets know nothing of it: who may
open them is the file system's to say.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

import grpc

from gradwire_proto import certificates
from gradwire_proto.addresses import split_address
from gradwire_proto.certificates import CertificateError
from gradwire_server.errors import StartError, StrangerError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gradwire_proto.certificates import Facts, Files
    from gradwire_server.group import Node

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the files. What changed is read once it has stayed as it is for so long:
three files are never replaced at once.
"""

KNOCK_SECONDS = 1.0

_Options = list[tuple[str, Any]]
_Stamp = tuple[tuple[int, int, int], ...]


class Plain:
    """No certificates: anybody is taken at his word."""

    expires: float | None = None
    """Unix seconds."""

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """The port. Raises RuntimeError where there is none to be had."""
        return server.add_insecure_port(address)

    def channel(self, address: str, options: _Options) -> grpc.aio.Channel:
        """To another daemon."""
        return grpc.aio.insecure_channel(address, options=options)

    def vouch(self, node: Node, shown: Mapping[str, Iterable[bytes]]) -> None:
        """Raise StrangerError where what a caller has shown (its auth_context) is not a
        certificate of this node.
        """

    async def explain(self, address: str) -> str:
        """Why a daemon does not take our call, where that has to do with certificates."""
        return await asyncio.to_thread(_explain, address, None)


PLAIN = Plain()


class Certified(Plain):
    """Both sides show certificates of one CA, and are who these say they are."""

    def __init__(self, folder: Path) -> None:
        """Raises StartError where the files are of no use."""
        self._folder = folder
        self._seen = self._read = _stamp(folder)
        try:
            self._files, self._facts = _load(folder)
        except CertificateError as error:
            raise StartError(f"certs={folder}: {error}") from error
        self._configuration = _configuration(self._files)

    @property
    def expires(self) -> float | None:  # type: ignore[override]  # it changes
        """See Plain."""
        return self._facts.expires

    def describe(self) -> str:
        """Whom the certificate names, and until when, in words."""
        return describe(self._facts)

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """See Plain. Each handshake uses the files that are current then."""
        credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration, lambda: self._configuration, require_client_authentication=True
        )
        return server.add_secure_port(address, credentials)

    def channel(self, address: str, options: _Options) -> grpc.aio.Channel:
        """See Plain."""
        ca, certificate, key = self._files
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def vouch(self, node: Node, shown: Mapping[str, Iterable[bytes]]) -> None:
        """See Plain."""
        found = [name.decode() for name in shown.get("x509_subject_alternative_name", ())]
        expected = [_place(each)[0] for each in (node.address, *node.routes)]
        if any(certificates.covers(found, host) for host in expected):
            return
        raise StrangerError(
            f"expected a certificate for {' or '.join(sorted(set(expected)))}, found"
            f" {_listed(found)}: the caller says that it is the daemon there. Issue it with"
            " these addresses (--host), or advertise one that it names"
        )

    async def explain(self, address: str) -> str:
        """See Plain."""
        return await asyncio.to_thread(_explain, address, self._files)

    async def watch(self) -> None:
        """Take new files once they are there, as long as they hold together. Until cancelled.

        Connections that are open stay as they are.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before, self._seen = self._seen, _stamp(self._folder)
            if self._seen == self._read or self._seen != before:
                continue
            self._read = self._seen
            try:
                files, facts = await asyncio.to_thread(_load, self._folder)
            except CertificateError as error:
                log.warning(
                    "new certificates in %s are of no use, going on with the old ones (%s): %s",
                    self._folder,
                    self.describe(),
                    error,
                )
                continue
            self._files, self._facts = files, facts
            self._configuration = _configuration(files)
            log.info("new certificates from %s: %s", self._folder, self.describe())


def describe(facts: Facts) -> str:
    """Whom a certificate names, and until when."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.expires))
    return f"for {', '.join(facts.names) or 'nobody'} until {when}"


def _load(folder: Path) -> tuple[Files, Facts]:
    files = certificates.read(folder)
    return files, certificates.inspect(files)


def _configuration(files: Files) -> grpc.ServerCertificateConfiguration:
    pair = (files.key, files.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=files.ca)


def _stamp(folder: Path) -> _Stamp:
    """Another one whenever the files are others."""
    return tuple(_mark(folder / name) for name in certificates.NAMES)


def _mark(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _listed(names: Sequence[str]) -> str:
    return f"one for {', '.join(names)}" if names else "none"


def _place(address: str) -> tuple[str, int]:
    """What ranks have said of another node may be no address at all: then nobody is there."""
    try:
        return split_address(address)
    except ValueError:
        return address, 0


def _explain(address: str, files: Files | None) -> str:
    host, port = _place(address)

    def knock(context: ssl.SSLContext) -> Mapping[str, Any]:
        with (
            socket.create_connection((host, port), KNOCK_SECONDS) as line,
            context.wrap_socket(line, server_hostname=host) as shaken,
        ):
            return certificates.hear(shaken)

    return certificates.explain(host, files, knock)
