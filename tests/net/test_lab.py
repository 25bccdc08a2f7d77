"""A laboratory has the rates, the delay and the packets that were asked for."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan, payload_share
from gradwire_ops.lab_probe import payload_rate, round_trip_seconds

if TYPE_CHECKING:
    from gradwire_ops.lab import Lab, Node

RATE = 200_000_000
BIG = 8 << 20
SECONDS = 20


def carries(net: Lab, sender: int, receiver: int, rate: int, mtu: int = 1500) -> bool:
    """A socket fills a link of this rate. Not every time: other work may take the CPUs."""
    most = payload_share(mtu)
    shares = (payload_rate(net, sender, receiver) * 8 / rate for _ in range(3))
    return any(0.94 * most <= share <= 1.015 * most for share in shares)


def output(node: Node, *command: str) -> str:
    result = subprocess.run(
        node.enter(command), capture_output=True, text=True, check=True, timeout=20
    )
    return result.stdout


def counters(node: Node, interface: str) -> tuple[int, int]:
    """Bytes received and sent so far."""
    (link,) = json.loads(output(node, "ip", "-j", "-s", "link", "show", interface))
    return link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]


def listen(node: Node, interface: int = 0) -> socket.socket:
    address = node.addresses[interface]
    server = node.call(lambda: socket.create_server((address, 0)))
    server.settimeout(SECONDS)
    return server


def connect(node: Node, server: socket.socket) -> socket.socket:
    target = server.getsockname()
    return node.call(lambda: socket.create_connection(target, SECONDS))


def deliver(sender: Node, receiver: Node, interface: int = 0) -> int:
    """Send BIG bytes to that interface's address; how many have arrived."""
    with listen(receiver, interface) as server, connect(sender, server) as there:
        here, _ = server.accept()
        with here:
            here.settimeout(SECONDS)
            sending = threading.Thread(target=send_all, args=(there,))
            sending.start()
            arrived = sum(len(piece) for piece in iter(lambda: here.recv(1 << 16), b""))
            sending.join()
    return arrived


def send_all(there: socket.socket) -> None:
    there.sendall(bytes(BIG))
    there.shutdown(socket.SHUT_WR)


def test_a_plain_socket_fills_a_link_and_no_more() -> None:
    with lab(LabPlan(2, (RATE, RATE))) as net:
        for sender, receiver in ((0, 1), (1, 0)):
            assert carries(net, sender, receiver, RATE)


def test_of_two_links_the_slower_one_counts_whichever_way() -> None:
    with lab(LabPlan(3, (RATE, None, RATE // 2))) as net:
        for sender, receiver in ((1, 2), (2, 0)):
            assert carries(net, sender, receiver, RATE // 2)


@pytest.mark.usefixtures("delays")
def test_a_round_trip_takes_the_delay_and_the_rate_stays() -> None:
    with lab(LabPlan(2, (RATE, RATE), delay_seconds=0.02)) as net:
        assert 0.020 <= round_trip_seconds(net, 0, 1) <= 0.030
        assert carries(net, 0, 1, RATE)


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("delay_seconds", [0.0, 0.001])
@pytest.mark.parametrize("mtu", [600, 9000])
def test_packets_are_as_long_as_the_mtu(mtu: int, delay_seconds: float) -> None:
    plan = LabPlan(2, (RATE, RATE), delay_seconds, mtu)
    with lab(plan) as net:
        (link,) = json.loads(output(net.nodes[1], "ip", "-j", "link", "show", "eth0"))
        assert link["mtu"] == mtu
        assert carries(net, 0, 1, RATE, mtu)


@pytest.mark.usefixtures("delays")
@pytest.mark.parametrize("delay_seconds", [0.0, 0.001])
def test_each_interface_is_a_network_of_its_own(delay_seconds: float) -> None:
    plan = LabPlan(2, (None, None), delay_seconds, interfaces=2)
    with lab(plan) as net:
        first, second = net.nodes
        assert first.interfaces == ("eth0", "eth1")
        for used, idle in ((0, 1), (1, 0)):
            quiet = counters(second, second.interfaces[idle])
            received, _ = counters(second, second.interfaces[used])
            assert deliver(first, second, used) == BIG
            assert counters(second, second.interfaces[used])[0] - received >= BIG
            # Neighbours may ask for one another's addresses.
            assert sum(counters(second, second.interfaces[idle])) - sum(quiet) < 2000


def test_laboratories_with_the_same_addresses_stand_beside_one_another() -> None:
    with lab(LabPlan(2)) as one, lab(LabPlan(2)) as other:
        assert one.nodes[0].addresses == other.nodes[0].addresses
        assert deliver(one.nodes[0], one.nodes[1]) == BIG
        with listen(one.nodes[0]) as server, pytest.raises(ConnectionRefusedError):
            connect(other.nodes[1], server)
