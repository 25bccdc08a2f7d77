"""The token with which a rank joins, where it has one."""

from __future__ import annotations

import os
from pathlib import Path

from gradwire._errors import ConnectError
from gradwire_proto.addresses import is_loopback, split_address
from gradwire_proto.certificates import VARIABLE as CERTIFICATES
from gradwire_proto.tokens import FILE_VARIABLE, VARIABLE

Metadata = tuple[tuple[str, str], ...]


def metadata(address: str) -> Metadata:
    """What a call to the daemon there bears. The file is read each time: it may be renewed.

    Raises ConnectError where the token can't be read, or would cross a network in the open.
    """
    token = _read()
    if not token:
        return ()
    if not _is_private(address):
        raise ConnectError(
            f"the daemon at {address} is on another host and without certificates: who listens"
            f" there would read the token. Set {CERTIFICATES}, or unset {VARIABLE} and"
            f" {FILE_VARIABLE}",
            final=True,
        )
    return (("authorization", f"Bearer {token}"),)


def _read() -> str:
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return os.environ.get(VARIABLE, "").strip()
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectError(f"{FILE_VARIABLE}={path}: {error}", final=True) from error


def _is_private(address: str) -> bool:
    if address.startswith("unix:") or os.environ.get(CERTIFICATES):
        return True
    return is_loopback(split_address(address)[0])
