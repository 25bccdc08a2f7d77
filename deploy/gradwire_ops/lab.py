"""A network laboratory: nodes that are network namespaces, and links that have a rate.

    with lab(LabPlan(nodes=4, rates=(10**9,) * 4, delay_seconds=0.02)) as net:
        subprocess.run(net.nodes[1].enter(["ping", "-c1", net.nodes[0].addresses[0]]))

Needs root. The switch in the middle has a namespace of its own, so nothing of the host's
network is used or changed, and several laboratories with the same addresses can stand beside
one another. All of it is held by this process alone, and goes when it does (see namespace).
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_ops.lab_plan import LabError, LabPlan, burst_bytes, queue_bytes, relay_bytes
from gradwire_ops.namespace import Namespace
from gradwire_ops.place import Place
from gradwire_ops.relay import relay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from gradwire_ops.relay import Link

    T = TypeVar("T")

NETWORK = "10.213"
"""Interface k of node i has the address NETWORK.k.(i + 1)."""
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}
_COMMAND_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """A host of the laboratory."""

    name: str
    addresses: tuple[str, ...]
    """One for each interface, each on a network of its own."""
    interfaces: tuple[str, ...]
    namespace: Namespace
    bandwidth: int
    """Bits per second, where the nodes' networks differ; else 0."""

    @property
    def place(self) -> Place:
        """For daemons, which use all interfaces, and ranks, which meet on the first."""
        return Place(
            self.namespace.prefix(), self.addresses, self.interfaces[0], self.bandwidth
        )

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command that runs this one on the node."""
        return self.namespace.enter(command)

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns, called on the node; sockets that it makes stay there."""
        return self.namespace.call(function)


@dataclass(frozen=True, slots=True)
class Lab:
    """A laboratory that stands."""

    plan: LabPlan
    nodes: tuple[Node, ...]
    switch: Namespace

    def unplug(self, node: int) -> None:
        """Take the links of a node from the switch: what it sends goes nowhere, unnoticed."""
        self._set(node, "down")

    def plug_in(self, node: int) -> None:
        """Put them back."""
        self._set(node, "up")

    def _set(self, node: int, state: str) -> None:
        ports = (_port(self.nodes[node], name) for name in self.nodes[node].interfaces)
        _run_batch(self.switch, "ip", [f"link set {port} {state}" for port in ports])

    def change_rate(self, node: int, rate: int | None) -> None:
        """Of the links of a node, each way; None: as planned."""
        where, rate = self.nodes[node], rate or self.plan.all_rates[node]
        for namespace, devices in (
            (where.namespace, where.interfaces),
            (self.switch, [_port(where, name) for name in where.interfaces]),
        ):
            _run_batch(namespace, "tc", [_changed(device, rate) for device in devices])

    @property
    def places(self) -> tuple[Place, ...]:
        """Of all nodes, in order."""
        return tuple(node.place for node in self.nodes)


@contextmanager
def lab(plan: LabPlan) -> Iterator[Lab]:
    """Build it; on leaving, in whatever way, it is gone once the last process in it is.

    Enter it in a thread that lives as long as the laboratory shall. Raises LabError where it
    can't be built, with what is missing.
    """
    _require_tools()
    with ExitStack() as stack:
        switch = _namespace(stack)
        nodes = tuple(_node(number, plan, _namespace(stack)) for number in range(plan.nodes))
        _run_batch(switch, "ip", _bridges(plan))
        if plan.delay_seconds:
            links = _delayed_links(plan, switch, nodes)
            stack.enter_context(relay(plan.hop_seconds, links))
        else:
            _run_batch(switch, "ip", _plain_links(nodes))
        _run_batch(switch, "ip", _ports(plan, nodes))
        for node in nodes:
            _run_batch(node.namespace, "ip", _addresses(plan, node))
        _limit(plan, switch, nodes)
        yield Lab(plan, nodes, switch)


def _require_tools() -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        packages = " ".join(sorted({_TOOLS[tool] for tool in missing}))
        raise LabError(
            f"a network laboratory is built with {', '.join(missing)}, missing here;"
            f" on Debian: apt-get install {packages}"
        )


def _namespace(stack: ExitStack) -> Namespace:
    namespace = Namespace()
    stack.callback(namespace.close)
    return namespace


def _node(number: int, plan: LabPlan, namespace: Namespace) -> Node:
    links = range(plan.interfaces)
    return Node(
        f"node{number}",
        tuple(f"{NETWORK}.{link}.{number + 1}" for link in links),
        tuple(f"eth{link}" for link in links),
        namespace,
        (plan.all_rates[number] or 0) * plan.interfaces if len(set(plan.all_rates)) > 1 else 0,
    )


def _port(node: Node, interface: str) -> str:
    """The switch's end of a link."""
    return f"{node.name}{interface}"


def _bridges(plan: LabPlan) -> Iterator[str]:
    yield "link set lo up"
    for link in range(plan.interfaces):
        yield f"link add br{link} mtu {plan.mtu} type bridge"
        yield f"link set br{link} up"


def _plain_links(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        for interface in node.interfaces:
            far = f"{interface} netns {node.namespace.path}"
            yield f"link add {_port(node, interface)} type veth peer name {far}"


def _delayed_links(plan: LabPlan, switch: Namespace, nodes: Sequence[Node]) -> list[Link]:
    return [
        (
            (node.namespace, interface),
            (switch, _port(node, interface)),
            relay_bytes(rate, plan.hop_seconds),
        )
        for node, rate in zip(nodes, plan.all_rates, strict=True)
        for interface in node.interfaces
    ]


def _ports(plan: LabPlan, nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        for link, interface in enumerate(node.interfaces):
            port = _port(node, interface)
            yield f"link set {port} mtu {plan.mtu} master br{link}"
            yield f"link set {port} up"


def _addresses(plan: LabPlan, node: Node) -> Iterator[str]:
    yield "link set lo up"
    for interface, address in zip(node.interfaces, node.addresses, strict=True):
        yield f"link set {interface} mtu {plan.mtu}"
        yield f"address add {address}/24 dev {interface}"
        yield f"link set {interface} up"


def _limit(plan: LabPlan, switch: Namespace, nodes: Sequence[Node]) -> None:
    """A queue holds up what leaves a device: the node's end slows down what the node sends,
    the switch's end what it receives."""
    ports: list[str] = []
    for node, rate in zip(nodes, plan.all_rates, strict=True):
        if rate is not None:
            ports += [_bucket(_port(node, name), rate) for name in node.interfaces]
            own = [_bucket(name, rate) for name in node.interfaces]
            _run_batch(node.namespace, "tc", own)
    if ports:
        _run_batch(switch, "tc", ports)


def _bucket(device: str, rate: int) -> str:
    shape = f"rate {rate}bit burst {burst_bytes(rate)} limit {queue_bytes(rate)}"
    return f"qdisc add dev {device} root tbf {shape}"


def _changed(device: str, rate: int | None) -> str:
    if rate is None:
        return f"qdisc del dev {device} root"
    return _bucket(device, rate).replace("add", "replace", 1)


def _run_batch(namespace: Namespace, tool: str, lines: Iterator[str] | Sequence[str]) -> None:
    """Raises LabError for the first line that is refused."""
    text = "".join(f"{line}\n" for line in lines)
    result = subprocess.run(  # noqa: S603 - one of _TOOLS
        namespace.enter([tool, "-batch", "-"]),
        input=text,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if result.returncode:
        words = " ".join(result.stderr.split())
        raise LabError(
            f"{tool} could not do its part of a network laboratory: {words}; it needs root,"
            f" and a kernel with bridge, veth and tbf. It was told:\n{text.rstrip()}"
        )
