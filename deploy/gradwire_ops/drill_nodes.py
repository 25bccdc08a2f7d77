"""The daemons of a drill, who starts them again, and what is between them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire_ops import cluster, query
from gradwire_ops.children import STOP_SECONDS, stop
from gradwire_ops.drill_relay import Relay
from gradwire_ops.job import free_port
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan
from gradwire_ops.place import HERE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire_ops.children import Child
    from gradwire_ops.drill_plan import DrillPlan
    from gradwire_ops.lab import Lab
    from gradwire_ops.place import Place

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - this is what a shared-memory folder is
IDLE_SECONDS = 10.0
LOOK_SECONDS = 0.05
_BELL = ".bell"
_ORDINARY = (
    "ready: ",
    "stopping",
    "has ended",
    "arenas that no process uses",
    "certificates from",
    "without certificates (insecure)",
)
"""What a daemon also says where nothing is wrong."""


class Nodes:
    """Daemons with ports of their own, which they keep when they are started again.

    With relays, every daemon but the first is reached through one: of two daemons it is the
    one of lower index that dials.
    """

    def __init__(
        self, folder: Path, memory: Path, net: Lab | None, nodes: int, left: list[str]
    ) -> None:
        """`left` is told what the daemons leave behind when they end."""
        self._left = left
        self._folder = folder
        self._memory = memory
        self.lab = net
        self.places: tuple[Place, ...] = net.places if net else (HERE,) * nodes
        self.ports = tuple(free_port() for _ in range(nodes))
        self.relays: dict[int, Relay] = {}
        self.daemons: list[Child] = []
        self.addresses = tuple(cluster.address(folder, node) for node in range(nodes))
        self._lives = [0] * nodes

    def put_relays(self) -> None:
        """Before the daemons are started."""
        for node in range(1, len(self.ports)):
            host = self.places[node].address
            target = (host, self.ports[node])
            if self.lab:
                self.relays[node] = Relay(host, target, self.lab.nodes[node].call)
            else:
                self.relays[node] = Relay(host, target)

    def start(self) -> None:
        """All daemons; returns when they are ready. Raises ChildError."""
        for node in range(len(self.ports)):
            self.daemons.append(self._start(node))
        cluster.await_ready(self.daemons, self.addresses)

    def _start(self, node: int) -> Child:
        place = self.places[node]
        settings = {
            "GRADWIRE_LISTEN": f"{place.address}:{self.ports[node]}",
            "GRADWIRE_SHM_DIR": str(self._memory),
        }
        if node in self.relays:
            settings["GRADWIRE_ADVERTISE"] = f"{place.address}:{self.relays[node].port}"
        return cluster.start(self._folder, node, settings, place, self._lives[node])

    def restart(self, node: int) -> None:
        """At once and with the same flags, as a supervisor would; returns when it is ready."""
        self.daemons[node].wait(STOP_SECONDS)
        self.daemons[node].close()
        self._lives[node] += 1
        self.daemons[node] = self._start(node)
        cluster.await_ready([self.daemons[node]], [self.addresses[node]])

    def names(self, node: int) -> tuple[str, ...]:
        """How an error may call a node."""
        place = self.places[node]
        ports = [self.ports[node]]
        if node in self.relays:
            ports.append(self.relays[node].port)
        listens = [f"{place.address}:{port}" for port in ports]
        return (f"node {node} ", self.addresses[node], *listens)

    def words(self) -> list[float]:
        """When daemons said something out of the ordinary, on the monotonic clock."""
        offset = time.time() - time.monotonic()
        return [
            at - offset
            for node, life in enumerate(self._lives)
            for each in range(life + 1)
            for at in said(cluster.log_of(self._folder, node, each).read_text(errors="replace"))
        ]

    def leftovers(self) -> Iterator[str]:
        """What of a job that has ended is still there, after a while."""
        deadline = time.monotonic() + IDLE_SECONDS
        while (left := list(self._leftovers())) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        yield from left

    def _leftovers(self) -> Iterator[str]:
        for node, address in enumerate(self.addresses):
            try:
                jobs = query.status(address).jobs
            except query.UnreachableError as error:
                yield f"node {node}: {error}"
                continue
            for job in jobs:
                yield f"node {node} still has generation {job.generation}"
        if any(self._lives):
            self._sweep()
        # A daemon that lives has a doorbell there.
        yield from self._files(but=_BELL)

    def count_arenas(self) -> int:
        """Files of shared memory that are there now."""
        return sum(not path.name.endswith(_BELL) for path in self._memory.iterdir())

    def _files(self, but: str = "") -> Iterator[str]:
        for path in sorted(self._memory.iterdir()):
            if not (but and path.name.endswith(but)):
                yield f"{path.name} in the shared-memory folder"

    def _sweep(self) -> None:
        """A killed daemon's arena stays until the next one starts; do as that would."""
        from gradwire_server.shared_memory import ORPHAN_AGE_SECONDS, remove_orphans

        old = time.time() - 2 * ORPHAN_AGE_SECONDS
        for path in self._memory.iterdir():
            os.utime(path, (old, old))
        remove_orphans(self._memory)

    def close(self) -> None:
        """End all, and see what they leave behind."""
        for daemon in self.daemons:
            # A stopped one could not hear SIGTERM.
            if daemon.exit_code is None:
                daemon.signal(signal.SIGCONT)
        self._left += [f"{name} ignored SIGTERM and was killed" for name in stop(self.daemons)]
        for relay in self.relays.values():
            relay.close()
        if any(self._lives):
            self._sweep()
        self._left += self._files()


def _shared_memory() -> str:
    return os.environ.get("GRADWIRE_SHM_DIR") or SHARED_MEMORY


def said(log: str) -> Iterator[float]:
    """Wall-clock times of a log's lines that are out of the ordinary."""
    for line in log.splitlines():
        stamp, comma, rest = line[:23].partition(",")
        if not comma or any(word in line for word in _ORDINARY):
            continue
        try:
            at = time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"))
            yield at + int(rest) / 1000
        except ValueError:
            continue


@contextmanager
def nodes(plan: DrillPlan, left: list[str], *, relayed: bool) -> Iterator[Nodes]:
    """Daemons that are ready; on leaving, in whatever way, they are gone, and `left` has what
    they left behind.

    Raises ChildError where one does not start, LabError where there is no laboratory.
    """
    with ExitStack() as stack:
        net = stack.enter_context(lab(LabPlan(plan.nodes))) if plan.lab else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-")))
        memory = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="gradwire-drill-", dir=_shared_memory())
            )
        )
        running = Nodes(folder, memory, net, plan.nodes, left)
        stack.callback(running.close)
        if relayed:
            running.put_relays()
        running.start()
        yield running
