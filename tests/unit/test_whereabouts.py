"""Where a daemon listens and what it tells the others, from what the operator says."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, Self

import psutil
import pytest

from gradwire_proto.addresses import split_range
from gradwire_server.whereabouts import Doorstep, advertised, find_doorsteps, own_address


@pytest.fixture(autouse=True)
def _two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(family: int, address: str) -> Any:  # noqa: ANN401 - as psutil has them
        return SimpleNamespace(family=family, address=address)

    there = {
        "lo": [one(socket.AF_INET, "127.0.0.1"), one(socket.AF_INET6, "::1")],
        "eth0": [one(socket.AF_INET, "192.0.2.1"), one(socket.AF_PACKET, "02:fc:00:00:00:01")],
        "eth1": [
            one(socket.AF_INET6, "fe80::1%eth1"),
            one(socket.AF_INET6, "fd00::1"),
            one(socket.AF_INET, "10.0.0.1"),
        ],
        "down0": [],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)


@pytest.mark.case("E09")
def test_an_interface_stands_for_its_addresses() -> None:
    assert find_doorsteps("eth1:50700") == [
        Doorstep(("10.0.0.1", "fd00::1"), range(50700, 50701))
    ]
    assert [each.hosts[0] for each in find_doorsteps("eth0:1,eth1:0")] == [
        "192.0.2.1",
        "10.0.0.1",
    ]


@pytest.mark.case("E09")
@pytest.mark.parametrize("listen", ["^lo:50700", "eth9:50700", "eth0,eth1", "down0:1", "eth1"])
def test_what_is_not_accepted_is_told_what_is_and_which_interfaces_there_are(
    listen: str,
) -> None:
    with pytest.raises(ValueError, match=r"expected HOST:PORT.* eth1 \(10.0.0.1 fd00::1\)"):
        find_doorsteps(listen)


def test_addresses_and_names_stay_what_they_are() -> None:
    (one,) = find_doorsteps("localhost:7")
    assert one.hosts == ("localhost",)
    (one,) = find_doorsteps("[fd00::2]:7-9")
    assert (one.hosts, list(one.ports)) == (("fd00::2",), [7, 8, 9])


@pytest.mark.parametrize(
    "address", ["a:9-7", "a:0-7", "a:7-7", "a:1-65536", "a:7-", "fd00::2-9"]
)
def test_a_range_of_ports_that_is_none(address: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        split_range(address)


def test_others_are_told_where_to_come() -> None:
    listening = [("10.0.0.1", 7), ("192.0.2.1", 8)]
    assert advertised("", listening) == ["10.0.0.1:7", "192.0.2.1:8"]
    assert advertised("host,192.0.2.1,[fd00::2]:9", listening) == [
        "host:7", "192.0.2.1:8", "[fd00::2]:9",
    ]  # fmt: skip


class Probe:
    """A socket of a host that has a route of one family only."""

    family = socket.AF_INET6

    def __init__(self, family: int, _: int) -> None:
        if family != self.family:
            raise OSError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, _: object) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        return "fd00::7", 9


@pytest.mark.case("E10")
def test_a_host_without_ipv4_is_told_of_by_its_other_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", Probe)
    assert own_address() == "fd00::7"
    assert advertised("", [("0.0.0.0", 5)]) == ["[fd00::7]:5"]  # noqa: S104
    monkeypatch.setattr(Probe, "family", -1)
    assert own_address() == socket.gethostname()
