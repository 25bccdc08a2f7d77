"""A job: one Python module run as every rank of every node, on this machine."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire_ops.children import Child, read_all, stop
from gradwire_ops.place import HERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradwire_ops.place import Place

TIMEOUT_SECONDS = 600.0
_FIRST_PORT, _LAST_PORT = 20000, 32767
_PORT_TRIES = 100
# Left over from a launcher, these would make torch look for that launcher's store.
_FOREIGN_PREFIXES = ("TORCHELASTIC_",)
_FOREIGN_NAMES = frozenset({"GRADWIRE_DAEMON", "GRADWIRE_NODE"})


@dataclass(frozen=True, slots=True)
class Job:
    """What to run, and how many ranks sit on each node."""

    module: str
    arguments: tuple[str, ...]
    ranks_per_node: tuple[int, ...]
    timeout_seconds: float = TIMEOUT_SECONDS

    @property
    def world_size(self) -> int:
        """Ranks on all nodes together."""
        return sum(self.ranks_per_node)


@dataclass(frozen=True, slots=True)
class _Seat:
    rank: int
    local_rank: int
    local_world_size: int
    node: int
    place: Place
    meeting_address: str
    """Where rank 0 keeps torch's store."""


@contextmanager
def running(
    job: Job,
    daemons: Sequence[Child] = (),
    addresses: Sequence[str] = (),
    places: Sequence[Place] = (),
) -> Iterator[Iterator[tuple[int, str]]]:
    """Start all ranks and give what they print, as (rank, line), until all have ended well.

    A rank that fails, or a daemon that ends, stops the reading with ChildError at once; on
    leaving, no rank is left. Without addresses the ranks know of no daemon. The ranks of a node
    run at its place, by default on loopback.
    """
    ranks: dict[Child, int] = {}
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        try:
            port = free_port()
            for seat in _seats(job, places):
                environment = _environment(job, seat, port)
                # torch leaves caches in the folder for temporary files.
                environment["TMPDIR"] = folder
                if addresses:
                    environment["GRADWIRE_DAEMON"] = addresses[seat.node]
                ranks[_start(job, seat, environment, Path(folder))] = seat.rank
            lines = read_all(tuple(ranks), daemons, job.timeout_seconds)
            yield ((ranks[child], line) for child, line in lines)
        finally:
            stop(ranks)


def _seats(job: Job, places: Sequence[Place]) -> Iterator[_Seat]:
    places = places or (HERE,) * len(job.ranks_per_node)
    rank = 0
    for node, local_world_size in enumerate(job.ranks_per_node):
        place, meeting = places[node], places[0].address
        for local_rank in range(local_world_size):
            yield _Seat(rank, local_rank, local_world_size, node, place, meeting)
            rank += 1


def _start(job: Job, seat: _Seat, environment: dict[str, str], folder: Path) -> Child:
    name = f"rank {seat.rank}"
    log = folder / f"rank{seat.rank}.log"
    command = [job.module, *job.arguments]
    return Child(name, command, environment, log, piped=True, place=seat.place)


def _environment(job: Job, seat: _Seat, port: int) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN_PREFIXES) and name not in _FOREIGN_NAMES
    }
    return inherited | {
        "MASTER_ADDR": seat.meeting_address,
        "MASTER_PORT": str(port),
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(seat.local_world_size),
        "GROUP_RANK": str(seat.node),
        "OMP_NUM_THREADS": "1",
        # gloo would otherwise ask the name service for this host's name.
        "GLOO_SOCKET_IFNAME": seat.place.interface,
    }


def free_port() -> int:
    """A port for torch's store, which only rank 0 binds, seconds from now.

    Taken from below the range that the kernel gives to outgoing connections (from 32768 on), so
    that in the meantime none of them, gRPC's and gloo's for instance, is given it.
    """
    for _ in range(_PORT_TRIES):
        port = random.randint(_FIRST_PORT, _LAST_PORT)  # noqa: S311 - not a secret
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {_PORT_TRIES} ports from {_FIRST_PORT} to {_LAST_PORT} is free")
