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
from gradwire_proto.certificates import VARIABLE

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
                daemons.append(start(folder, node, settings or {}, place))
            addresses = tuple(address(folder, node) for node in range(nodes))
            await_ready(daemons, addresses)
            yield Cluster(folder, tuple(daemons), addresses)
        except ChildError as error:
            raise ChildError(f"{error}{last_words(daemons)}") from error
        finally:
            killed = stop(daemons)
        if killed:
            raise ChildError(
                f"these had to be killed, they ignored SIGTERM: {', '.join(killed)}"
            )


def start(
    folder: Path, node: int, settings: Mapping[str, str], place: Place, life: int = 0
) -> Child:
    """The daemon of a node, which is not ready yet; started again, it has a log of its own."""
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
    log = log_of(folder, node, life)
    name = f"the daemon of node {node}"
    return Child(name, ["gradwire_server"], environment, log, place=place)


def _openness(place: Place) -> dict[str, str]:
    """Daemons listen beyond loopback only where they are told to, or have certificates."""
    local = all(map(is_loopback, place.addresses))
    return {} if local or os.environ.get(VARIABLE) else {"GRADWIRE_INSECURE": "true"}


def log_of(folder: Path, node: int, life: int = 0) -> Path:
    """Where a daemon's words go."""
    return folder / (f"node{node}.{life}.log" if life else f"node{node}.log")


def address(folder: Path, node: int) -> str:
    """What a rank of this node puts into GRADWIRE_DAEMON."""
    return f"unix:{_socket(folder, node)}"


def _socket(folder: Path, node: int) -> Path:
    return folder / f"node{node}.sock"


def await_ready(daemons: Sequence[Child], addresses: Sequence[str]) -> None:
    """Return when all of them answer. Raises ChildError for one that ends, or never does."""
    deadline = time.monotonic() + READY_SECONDS
    for daemon, address in zip(daemons, addresses, strict=True):
        while not _answers(address):
            if daemon.exit_code is not None or time.monotonic() > deadline:
                raise daemon.failure()
            time.sleep(POLL_SECONDS)


def last_words(daemons: Sequence[Child]) -> str:
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
