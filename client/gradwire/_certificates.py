"""Channels to a daemon: plain, or with the certificates that GRADWIRE_CERTS names."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from gradwire._errors import ConnectError
from gradwire_proto import certificates
from gradwire_proto.addresses import split_address
from gradwire_proto.certificates import CertificateError, Files

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

KNOCK_SECONDS = 1.0


def channel(address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
    """To a daemon; with the files as they are now, where it is on another host.

    Raises ConnectError where they can't be read.
    """
    files = _files(address)
    if files is None:
        return grpc.insecure_channel(address, options=options)
    ca, certificate, key = files
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.secure_channel(address, credentials, options=options)


def explain(address: str) -> str:
    """Why a daemon does not take our call, where that has to do with certificates."""
    if address.startswith("unix:"):
        return ""
    try:
        files = _files(address)
        host, port = split_address(address)
    except ConnectError as error:
        return str(error)
    except ValueError:
        return ""  # It is no address.

    def knock(context: ssl.SSLContext) -> Mapping[str, Any]:
        with (
            socket.create_connection((host, port), KNOCK_SECONDS) as line,
            context.wrap_socket(line, server_hostname=host) as shaken,
        ):
            return certificates.hear(shaken)

    return certificates.explain(host, files, knock)


def _files(address: str) -> Files | None:
    """None over a Unix socket, which has no need of any."""
    folder = os.environ.get(certificates.VARIABLE)
    if not folder or address.startswith("unix:"):
        return None
    try:
        files = certificates.read(Path(folder))
        certificates.inspect(files)
    except CertificateError as error:
        raise ConnectError(f"{certificates.VARIABLE}={folder}: {error}") from error
    return files
