"""Where a daemon listens, and where others find it: addresses, names, interfaces, ports."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from gradwire_proto.addresses import (
    is_unspecified,
    join_address,
    split_advertised,
    split_list,
    split_range,
)

_EVERYWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation: the way there is the default route, and nobody is there."""


@dataclass(frozen=True, slots=True)
class Doorstep:
    """One of the places where a daemon is to listen."""

    hosts: tuple[str, ...]
    """Addresses or a name: all of them are listened on, the first is what others are told."""
    ports: range
    """The first of them that is free; 0 means any."""


def find_doorsteps(listen: str) -> list[Doorstep]:
    """What HOST:PORT,... stands for. HOST is an address, a name or one of this host's
    interfaces; PORT may be LOW-HIGH. Raises ValueError that lists the interfaces.
    """
    interfaces = _interfaces()
    found = []
    for each in split_list(listen):
        try:
            host, ports = split_range(each)
            found.append(Doorstep(_addresses(host, interfaces), ports))
        except (ValueError, OSError) as error:
            raise ValueError(f"{error}; {_accepted(interfaces)}") from None
    return found


def advertised(advertise: str, listening: list[tuple[str, int]]) -> list[str]:
    """What the others are told; a host without a port has the one that we listen on there."""
    if not advertise:
        return [
            join_address(own_address(host) if is_unspecified(host) else host, port)
            for host, port in listening
        ]
    ports = dict(reversed(listening))
    told = [split_advertised(address) for address in split_list(advertise)]
    default = listening[0][1]
    return [
        join_address(host, ports.get(host, default) if port is None else port)
        for host, port in told
    ]


def own_address(everywhere: str = "0.0.0.0") -> str:  # noqa: S104 - not listened on
    """Where others most likely reach this host, which listens on all addresses like this one:
    its address on the default route, or its name.
    """
    ways = list(_EVERYWHERE)
    if ":" in everywhere:
        ways.reverse()
    return next(filter(None, map(address_towards, ways)), socket.gethostname())


def address_towards(target: str) -> str:
    """This host's address on the way to a name or address; empty where there is no way."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    for family, kind, _, _, there in found:
        try:
            # A datagram socket is connected; nothing is sent.
            with socket.socket(family, kind) as probe:
                probe.connect(there)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""


def network_id() -> str:
    """This boot of this host, and the network namespace in it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def _interfaces() -> dict[str, tuple[str, ...]]:
    """Addresses of each interface that has any which others could use, IPv4 first."""
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        usable = [
            each.address
            for family in (socket.AF_INET, socket.AF_INET6)
            for each in addresses
            # Where a link-local address leads depends on who asks.
            if each.family == family and "%" not in each.address
        ]
        if usable:
            found[name] = tuple(usable)
    return found


def _addresses(host: str, interfaces: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    if host in interfaces:
        return interfaces[host]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            raise ValueError(f"{host} is no address, name or interface here") from None
    return (host,)


def _accepted(interfaces: dict[str, tuple[str, ...]]) -> str:
    listed = ", ".join(f"{name} ({' '.join(each)})" for name, each in interfaces.items())
    return (
        "expected HOST:PORT or HOST:LOW-HIGH, or several with commas, where HOST is an address,"
        f" a name, or an interface: {listed}"
    )
