"""Where daemons and ranks look for one another; no look-up, no socket."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_SOCKET = Path("/run/gradwire/gradwire.sock")
LONGEST_SOCKET_PATH = 107
"""Bytes of a Unix socket's path, see unix(7)."""

HIGHEST_PORT = 65535


def user_socket(environment: Mapping[str, str], temporary: str, user: int) -> Path:
    """A user's own socket: where a daemon goes that may not make the system's."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "gradwire.sock"
    return Path(temporary) / f"gradwire-{user}" / "gradwire.sock"


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port. Raises ValueError that shows the form expected."""
    host, colon, port = address.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(
            f"expected HOST:PORT; put an IPv6 address in brackets: [{host}]:{port}, or"
            f" [{address}]:PORT"
        )
    number = int(port) if port.isascii() and port.isdigit() else HIGHEST_PORT + 1
    if not colon or not host or number > HIGHEST_PORT:
        raise ValueError(
            f"expected HOST:PORT or [IPV6]:PORT, with a port of 0 to {HIGHEST_PORT}, got"
            f" {address!r}"
        )
    return host.strip("[]"), number


def split_range(address: str) -> tuple[str, range]:
    """Host, without brackets, and ports of HOST:PORT or HOST:LOW-HIGH. Raises ValueError."""
    start, dash, last = address.rpartition("-")
    if not dash or not last.isascii() or not last.isdigit() or ":" not in start:
        host, port = split_address(address)
        return host, range(port, port + 1)
    host, low = split_address(start)
    if not 0 < low < int(last) <= HIGHEST_PORT:
        raise ValueError(
            f"expected ports LOW-HIGH, of 1 to {HIGHEST_PORT}, LOW below HIGH, got {address!r}"
        )
    return host, range(low, int(last) + 1)


def split_list(addresses: str) -> list[str]:
    """The addresses of a list with commas. Raises ValueError where one is empty."""
    each = [address.strip() for address in addresses.split(",")]
    if not all(each):
        raise ValueError(f"expected addresses with commas between them, got {addresses!r}")
    return each


def split_advertised(address: str) -> tuple[str, int | None]:
    """Host and port of HOST or HOST:PORT; no port where it is the one that is listened on."""
    if address.startswith("[") or address.count(":") == 1:
        return split_address(address)
    return address, None


def join_address(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether nobody on another host can reach this address; a name may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Whether this stands for all addresses of a host, and so is none to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
