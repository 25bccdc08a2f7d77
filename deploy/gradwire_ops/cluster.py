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
from gradwire_ops.place import HERE
from gradwire_proto.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gradwire_ops.place import Place

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
def cluster(
    nodes: int,
    settings: Mapping[str, str] | None = None,
    places: Sequence[Place] = (),
) -> Iterator[Cluster]:
    """Start this many daemons; on leaving, in whatever way, they are gone again.

    Each runs at its place, by default on loopback. `settings` are GRADWIRE_* variables beside
    those that give each daemon its own addresses.

    Raises ChildError where one does not start, with what it said.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire-") as name:
        folder = Path(name)
        daemons: list[Child] = []
        try:
            for node in range(nodes):
                # No comprehension: if one can't be started, those before it must be known.
                place = places[node] if places else HERE
                daemons.append(_start(folder, node, settings or {}, place))
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


def _start(folder: Path, node: int, settings: Mapping[str, str], place: Place) -> Child:
    environment = {
        **os.environ,
        **_openness(place),
        "GRADWIRE_LISTEN": ",".join(f"{address}:0" for address in place.addresses),
        "GRADWIRE_ADVERTISE": "",
        "GRADWIRE_BANDWIDTH": str(place.bandwidth),
        "GRADWIRE_METRICS_LISTEN": "",
        "GRADWIRE_EMBEDDED": "false",
        **settings,
        "GRADWIRE_SOCKET": str(_socket(folder, node)),
    }
    environment.pop("GRADWIRE_CONFIG", None)
    log = folder / f"node{node}.log"
    name = f"the daemon of node {node}"
    return Child(name, ["gradwire_server"], environment, log, place=place)


def _openness(place: Place) -> dict[str, str]:
    """Daemons listen beyond loopback only where they are told to."""
    local = all(map(is_loopback, place.addresses))
    return {} if local else {"GRADWIRE_INSECURE": "true"}


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
