"""connect(): from a process with a rank to a seat in a job."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import time
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from gradwire import _embedded
from gradwire._buckets import Buckets
from gradwire._chain import Chain
from gradwire._channel import Daemon, Doorbell
from gradwire._checkpoint import Residual, collect, parts
from gradwire._drift import EVERY, Verifier
from gradwire._errors import AggregationError, ConnectError
from gradwire._mail import Mail
from gradwire._names import Names
from gradwire._nonfinite import Guard
from gradwire._pipeline import Carrier, Pipeline
from gradwire._place import Place
from gradwire._rendezvous import Meeting, Picture, find_store
from gradwire._session import Session
from gradwire._settings import Settings, load
from gradwire._shared_memory import Arena, from_now
from gradwire._steps import Steps
from gradwire._stream import Streaming
from gradwire._ways import Way, Ways
from gradwire._wires import Wires
from gradwire_proto import PROTOCOL
from gradwire_proto.addresses import SYSTEM_SOCKET, user_socket
from gradwire_proto.control import ABSENT, SHARES, STREAMS
from gradwire_proto.letters import page_bytes
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch.distributed import Store
    from torch.nn import Module

    from gradwire._wires import Wiring

log = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
JOIN_GRACE_SECONDS = 5.0
SEAT_LOOK_SECONDS = 0.1

URGENT = "/urgent"
"""What is urgent goes in a generation beside the job's, named after it."""


def connect(  # noqa: PLR0913 - keywords only, and each is a user's to choose
    *,
    timeout: float | None = None,
    connect_timeout: float | None = None,
    warn_after: float | None = None,
    first_timeout: float | None = None,
    daemon: str | None = None,
    store: Store | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    wire: Wiring | None = None,
    insecure: bool | None = None,
    weight: float = 1.0,
    nonfinite: str | None = None,
    verify: bool | int = False,
    model: Module | None = None,
) -> Session:
    """Take this process's seat in its job; every rank must call it. Returns when all are there.

    The ranks find one another through `store`, else the process group's store, else
    MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE. The daemon is `daemon` ("unix:/path",
    "host:port", "[ipv6]:port"), else GRADWIRE_DAEMON, else a running one's Unix socket, else
    one that is started for the job and ends with it.

    Times are in seconds. `timeout` (60): how long a collective waits for a rank. `warn_after`
    (a quarter of it): when the daemon names the missing ranks. `first_timeout` (ten times
    `timeout`): instead of that in DDP's first step, in which ranks may compile.
    `connect_timeout` (30): how long this call waits for ranks and daemons. `insecure`: an
    embedded daemon may listen to other hosts though nobody is authenticated. `weight`: see
    Session.weight. `model`: whose parameters are to be called by their names; see
    Session.watch.

    `wire`: how sums cross from node to node. A name ("exact", "bf16", "fp16", "int8", "fp8",
    "topk"), a gradwire.Wire, a list of pairs of a pattern of parameters' names and a wire, of
    which the first that matches counts, or a function from gradwire.Parameter to a wire; else
    GRADWIRE_WIRE, else exact. All ranks must choose alike.
    `nonfinite` says what becomes of a result with a NaN or an infinity, which all ranks have in
    the same elements: "pass" hands it on, and who brought it warns; "raise" makes the future
    raise NonFiniteError on all ranks; "skip" lets no torch optimizer use the gradients of that
    step of DDP, see Session.skips_step. The latter two name who brought it on all ranks, for
    which each looks at what it brings; equal on all ranks. `verify`: every 100 steps of DDP, or
    so many, the ranks compare digests of the model's parameters; DriftError where they differ.

    Raises ConnectError: no daemon, ranks that did not come, or a refusal; the text says what to
    do. TypeError for a model that is none.
    """
    settings = load(
        timeout=timeout,
        connect_timeout=connect_timeout,
        warn_after=warn_after,
        first_timeout=first_timeout,
        daemon=daemon,
        insecure=insecure,
        wire=wire,
        weight=weight,
        nonfinite=nonfinite,
        verify=_steps(verify),
        watches=model is not None,
    )
    names = Names()
    if model is not None:
        names.watch(model)
    store, rank, world_size = find_store(store, rank, world_size)
    meeting = Meeting(store, rank, world_size, settings.connect_timeout)
    with contextlib.ExitStack() as unless_seated:
        address = _find_daemon(settings, meeting, unless_seated)
        with contextlib.closing(Daemon(address)) as found:
            described = found.describe(settings.connect_timeout, wait=True)
        picture = meeting.agree(described)
        daemons = _reach(address, described)
        session = _Table(daemons, picture, rank, world_size, settings).session(names)
        unless_seated.pop_all()
    return session


def _steps(verify: object) -> int:
    """Steps between two looks; below 0 for what is no such number."""
    if isinstance(verify, bool):
        return EVERY if verify else 0
    return verify if isinstance(verify, int) else -1


def _find_daemon(
    settings: Settings, meeting: Meeting, unless_seated: contextlib.ExitStack
) -> str:
    """Address of this node's daemon; one that is started here ends unless the job forms."""
    if settings.daemon is not None:
        return settings.daemon
    if settings.node is None:
        own = user_socket(os.environ, tempfile.gettempdir(), os.getuid())
        for path in (SYSTEM_SOCKET, own):
            if _listens(path):
                return f"unix:{path}"
    return _find_embedded(settings, meeting, unless_seated)


def _find_embedded(
    settings: Settings, meeting: Meeting, unless_seated: contextlib.ExitStack
) -> str:
    """The one at which this process has another seat, else one that the node's ranks share."""
    key = _embedded.node_key(settings.node)
    if (known := _embedded.in_use(key)) is not None:
        return known
    if not meeting.first(key):
        started = meeting.read(f"embedded/{key}", "this node's embedded daemon")
        if "error" in started:
            raise ConnectError(started["error"])
        return _embedded.remember(key, str(started["address"]))
    try:
        address, end = _embedded.start(
            insecure=settings.insecure, timeout_seconds=settings.connect_timeout
        )
        unless_seated.callback(end)
    except ConnectError as error:
        meeting.publish(f"embedded/{key}", {"error": str(error)})
        raise
    meeting.publish(f"embedded/{key}", {"address": address})
    return _embedded.remember(key, address)


def _listens(path: Path) -> bool:
    """Whether a daemon of ours, or of the system's, is behind this socket."""
    try:
        if path != SYSTEM_SOCKET and path.stat().st_uid not in (0, os.getuid()):
            # Anybody may make a folder of this name.
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PROBE_SECONDS)
            probe.connect(str(path))
    except PermissionError:
        log.warning(
            "there is a socket %s, but this user may not use it: join its group, or name the"
            " daemon with GRADWIRE_DAEMON. Going on without it",
            path,
        )
        return False
    except OSError:
        return False
    return True


class _Table:
    """Seats for one rank of an agreed job."""

    def __init__(
        self,
        daemons: list[str],
        picture: Picture,
        rank: int,
        world_size: int,
        settings: Settings,
    ) -> None:
        self._daemons = daemons
        self._picture = picture
        self._rank = rank
        self._world_size = world_size
        self._settings = settings

    def session(self, names: Names) -> Session:
        """Take a seat at every worker."""
        settings, picture = self._settings, self._picture
        node_of = [0] * self._world_size
        for number, node in enumerate(picture.nodes):
            for rank in node.ranks:
                node_of[rank] = number
        guard = Guard(settings.nonfinite, self._rank, node_of, names, Steps())
        verifier = Verifier(settings.verify_every, names, self._rank, self._world_size)
        ways = Ways(len(picture.workers), partial(self._sit_down, guard))
        place = Place(
            rank=self._rank,
            world_size=self._world_size,
            node=self._picture.node,
            nodes=len(self._picture.nodes),
            generation=self._picture.generation,
            daemon=self._daemons[0],
            local_ranks=tuple(self._picture.nodes[self._picture.node].ranks),
            workers=len(self._picture.workers),
            timeout=self._settings.timeout,
        )
        buckets = Buckets(Wires(settings.wire, names), guard, verifier)
        return Session(place, ways, buckets, settings.weight)

    def _sit_down(self, guard: Guard, worker: int, urgent: bool) -> Way:
        patience = self._settings.connect_timeout
        with contextlib.ExitStack() as unless_seated:
            daemon = Daemon(self._daemons[worker])
            unless_seated.callback(daemon.close)
            seat = daemon.join(
                self._request(worker, urgent=urgent), patience + JOIN_GRACE_SECONDS
            )
            carrier = _open_carrier(daemon, seat, self._picture, self._rank, patience)
            unless_seated.pop_all()

        _embedded.sit_down(daemon.address)

        def ended(_: AggregationError, leaving: bool) -> None:
            _embedded.get_up(daemon.address)
            if not leaving:
                daemon.close()

        def leave() -> None:
            daemon.leave(seat.seat)
            daemon.close()

        page = page_bytes(seat.chunk_bytes)
        mail = Mail(self._rank, self._world_size, page, lambda: daemon.post(seat.seat))
        settings = self._settings
        pipeline = Pipeline(carrier, settings.timeout, guard.judge, settings.first_timeout)
        pipeline.attend(ended)
        return Way(pipeline, mail, leave, carrier.path, _Vault(daemon, seat.seat))

    def _request(self, worker: int, *, urgent: bool) -> pb.JoinRequest:
        settings = self._settings
        request = pb.JoinRequest(
            protocol=PROTOCOL,
            generation=self._picture.generation + (URGENT if urgent else ""),
            rank=self._rank,
            world_size=self._world_size,
            nodes=self._picture.workers[worker],
            node=self._picture.node,
            host=socket.gethostname(),
            pid=os.getpid(),
            shared_memory=settings.shared_memory,
            urgent=urgent,
            version=version("gradwire"),
        )
        request.timeout.FromMilliseconds(int(1000 * settings.timeout))
        request.warn_after.FromMilliseconds(int(1000 * settings.warn_after))
        request.first_timeout.FromMilliseconds(int(1000 * settings.first_timeout))
        request.connect_timeout.FromMilliseconds(int(1000 * settings.connect_timeout))
        return request


class _Vault:
    """See _ways.Vault."""

    def __init__(self, daemon: Daemon, seat: str) -> None:
        self._daemon = daemon
        self._seat = seat

    def read(self, revoked: Iterable[int]) -> list[Residual]:
        """See Vault."""
        return list(collect(self._daemon.read_residuals(self._seat, revoked)))

    def write(self, residuals: list[Residual]) -> int:
        """See Vault."""
        return self._daemon.write_residuals(self._seat, parts(residuals)).dropped


def _reach(address: str, described: pb.DescribeResponse) -> list[str]:
    """Where this rank finds each worker: the same way as the first."""
    local = address.startswith("unix:")
    others = [
        f"unix:{worker.socket}" if local else worker.addresses[0]
        for worker in described.workers
    ]
    return [address, *others]


def _open_carrier(
    daemon: Daemon,
    seat: pb.JoinResponse,
    picture: Picture,
    rank: int,
    patience_seconds: float,
) -> Carrier:
    """The arena where all ranks of the node share it, else the stream."""
    doorbell = None
    if seat.HasField("arena"):
        with contextlib.ExitStack() as unless_used:
            try:
                arena = Arena(seat.arena)
                unless_used.callback(arena.close, orphaned=False)
                doorbell = Doorbell(seat.arena.doorbell, seat.seat, daemon.address)
            except (OSError, ValueError) as error:
                log.warning(
                    "no shared memory with the daemon at %s (%s): tensors go through the"
                    " stream, which is slower. Mount its GRADWIRE_SHM_DIR here too, or set"
                    " GRADWIRE_SHM=off to silence this",
                    daemon.address,
                    error,
                )
            else:
                chain = _chain(arena, doorbell, picture, patience_seconds)
                if chain is not None:
                    unless_used.pop_all()
                    return chain
    return Streaming(daemon.stream(seat.seat), rank, seat.chunk_bytes, seat.slots, doorbell)


def _chain(
    arena: Arena, doorbell: Doorbell, picture: Picture, patience_seconds: float
) -> Chain | None:
    """The carrier through the arena, or None where a rank of the node does not share it."""
    try:
        if not _all_share(arena, picture, patience_seconds):
            return None
    except BaseException:
        doorbell.close()
        raise
    world_size = sum(len(node.ranks) for node in picture.nodes)
    alone, ranks = len(picture.nodes) == 1, picture.nodes[picture.node].ranks
    return Chain(arena, doorbell, world_size, alone=alone, ranks=ranks)


def _all_share(arena: Arena, picture: Picture, patience_seconds: float) -> bool:
    """Whether all ranks of this node use the arena, once that is known.

    Raises ConnectError where it does not get known.
    """
    control, ranks = arena.control, picture.nodes[picture.node].ranks
    control.take_seat(arena.local_rank, SHARES)
    deadline = time.monotonic() + patience_seconds
    while ABSENT in (seats := control.seats()):
        left = deadline - time.monotonic()
        if left <= 0:
            absent = [rank for rank, seat in zip(ranks, seats, strict=True) if seat == ABSENT]
            raise ConnectError(
                f"waited {patience_seconds:g} s for the ranks {absent} of this node to connect;"
                " they had their seats, and went no further"
            )
        control.wait(arena.local_rank, from_now(min(left, SEAT_LOOK_SECONDS)))
    return STREAMS not in seats
