"""Several daemons on this machine, each playing a node."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire_ops import query
from gradwire_ops.children import POLL_SECONDS, Child, ChildError, stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

READY_SECONDS = 60.0
DAEMON_LINES = 5


@dataclass(frozen=True, slots=True)
class Cluster:
    """Daemons that are ready for a job, one per node, and a folder that goes when they do."""

    folder: Path
    daemons: tuple[Child, ...]
    addresses: tuple[str, ...]
    """What a rank of each node puts into GRADWIRE_DAEMON."""


@contextmanager
def cluster(nodes: int, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Start this many daemons on loopback; on leaving, in whatever way, they are gone again.

    `settings` are GRADWIRE_* variables beside those that give each daemon its own addresses.
    Raises ChildError where one does not start, with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-") as name:
        folder = Path(name)
        daemons: list[Child] = []
        try:
            for node in range(nodes):
                # No comprehension: if one can't be started, those before it must be known.
                daemons.append(_start(folder, node, settings or {}))  # noqa: PERF401
            addresses = tuple(f"unix:{_socket(folder, node)}" for node in range(nodes))
            _await_ready(daemons, addresses)
            yield Cluster(folder, tuple(daemons), addresses)
        except ChildError as error:
            raise ChildError(f"{error}{_last_words(daemons)}") from error
        finally:
            killed = stop(daemons)
        if killed:
            raise ChildError(
                f"these had to be killed, they ignored SIGTERM: {', '.join(killed)}"
            )


def _start(folder: Path, node: int, settings: Mapping[str, str]) -> Child:
    environment = {
        **os.environ,
        "GRADWIRE_LISTEN": "127.0.0.1:0",
        "GRADWIRE_ADVERTISE": "",
        "GRADWIRE_METRICS_LISTEN": "",
        "GRADWIRE_EMBEDDED": "false",
        **settings,
        "GRADWIRE_SOCKET": str(_socket(folder, node)),
    }
    environment.pop("GRADWIRE_CONFIG", None)
    log = folder / f"node{node}.log"
    return Child(f"the daemon of node {node}", ["gradwire_server"], environment, log)


def _socket(folder: Path, node: int) -> Path:
    return folder / f"node{node}.sock"


def _await_ready(daemons: list[Child], addresses: tuple[str, ...]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    for daemon, address in zip(daemons, addresses, strict=True):
        while not _answers(address):
            if daemon.exit_code is not None or time.monotonic() > deadline:
                raise daemon.failure()
            time.sleep(POLL_SECONDS)


def _last_words(daemons: list[Child]) -> str:
    """Of the daemons that still run; the failure itself has those of one that does not."""
    running = [daemon for daemon in daemons if daemon.exit_code is None]
    return "".join(f"\n{one.name} runs; {one.last_words(DAEMON_LINES)}" for one in running)


def _answers(address: str) -> bool:
    if not Path(address.removeprefix("unix:")).exists():
        return False
    try:
        query.describe(address, seconds=1.0)
    except query.UnreachableError:
        return False
    return True
