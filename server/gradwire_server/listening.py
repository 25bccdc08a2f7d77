"""A daemon's own places: its Unix socket, and the ports on which others come."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire_proto.addresses import join_address
from gradwire_server.errors import StartError
from gradwire_server.whereabouts import advertised, find_doorsteps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc

    from gradwire_server.identity import Identity
    from gradwire_server.settings import Settings
    from gradwire_server.transport.credentials import Plain
    from gradwire_server.whereabouts import Doorstep

    Listen = Callable[[str], int]
    Place = tuple[str, int]

LONGEST_LOCK = 4096


@contextlib.contextmanager
def owned_socket(path: Path) -> Iterator[int]:
    """Make sure that the socket's path is ours alone; remove it in the end.

    Gives the file that says so, in which there is room for a note to whoever comes after us.

    gRPC replaces a socket that is there, even one in use; so a lock beside it says whose it is.
    """
    lock = path.with_name(path.name + ".lock")
    file = _locked(path, lock)
    while not _is_at(file, lock):
        # Whoever had it removed it just before we had the lock: this one has no name any more.
        os.close(file)
        file = _locked(path, lock)
    try:
        yield file
    finally:
        path.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        os.close(file)


def _locked(path: Path, lock: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o660)
    except OSError as error:
        raise StartError(
            f"can't make the socket {path}: {error}; choose another --socket"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise StartError(f"another daemon already uses the socket {path}") from None
    return file


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def bind(
    server: grpc.aio.Server, settings: Settings, identity: Identity, lock: int, shown: Plain
) -> None:
    """Listen in all places, and say so in the daemon's identity. Raises StartError."""
    before, listen = _inherit(lock), partial(shown.listen, server)
    steps = [_step(listen, each, before) for each in find_doorsteps(settings.listen)]
    _bequeath(lock, [place for step in steps for place in step], identity.doorbell)
    server.add_insecure_port(f"unix:{settings.socket}")
    os.chmod(settings.socket, 0o660)
    identity.socket = str(settings.socket)
    identity.insecure = settings.insecure
    identity.certified = settings.certs is not None
    identity.chunk_bytes = settings.chunk_bytes
    identity.bandwidth = settings.bandwidth
    identity.addresses = advertised(settings.advertise, [step[0] for step in steps])
    identity.address = identity.addresses[0]


def _step(listen: Listen, doorstep: Doorstep, before: list[Place]) -> list[Place]:
    """Listen on one port at each of its addresses; the port is known then."""
    first, *others = doorstep.hosts
    places = [(first, _listen(listen, first, doorstep.ports, before))]
    for host in others:
        port = places[0][1]
        places.append((host, _listen(listen, host, range(port, port + 1), before)))
    return places


def _inherit(lock: int) -> list[tuple[str, int]]:
    """Where a daemon listened that had this socket, and did not end in good order.

    Others look for it there still, even where it was to take any port. What it had no time to
    remove goes.
    """
    try:
        ports, doorbell = json.loads(os.pread(lock, LONGEST_LOCK, 0) or b"[[], null]")
        if doorbell is not None and Path(doorbell).is_socket():
            Path(doorbell).unlink(missing_ok=True)
        return [(str(host), int(port)) for host, port in ports]
    except (ValueError, TypeError, OSError):
        return []


def _bequeath(lock: int, listening: list[tuple[str, int]], doorbell: str) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps([listening, doorbell]).encode(), 0)


def _listen(listen: Listen, host: str, ports: range, before: list[Place]) -> int:
    known = [] if ports[0] else [port for place, port in before if place == host]
    for port in (*known, *ports):
        with contextlib.suppress(RuntimeError):
            return listen(join_address(host, port))
    wanted = str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"
    raise StartError(
        f"can't listen on {join_address(host, 0)[:-1]}{wanted}: address already in use, or not"
        " this machine's. Is another daemon running? --listen HOST:0 takes any free port"
    )
