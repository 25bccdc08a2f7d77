"""connect(): from a process with a rank to a seat in a job."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from gradwire import _embedded
from gradwire._buckets import Buckets
from gradwire._channel import Daemon
from gradwire._drift import EVERY, Verifier
from gradwire._errors import AggregationError, ConnectError
from gradwire._mail import Mail
from gradwire._names import Names
from gradwire._nonfinite import Guard
from gradwire._pipeline import Pipeline
from gradwire._place import Place
from gradwire._recovery import Recovery
from gradwire._rendezvous import Meeting, Picture, find_store
from gradwire._resuming import ResumingPipeline
from gradwire._seat import Seat
from gradwire._session import Session
from gradwire._settings import Settings, load
from gradwire._steps import Steps
from gradwire._ways import Way, Ways
from gradwire._wires import Wires
from gradwire_proto import PROTOCOL
from gradwire_proto.addresses import SYSTEM_SOCKET, user_socket
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed import Store
    from torch.nn import Module

    from gradwire._wires import Wiring

log = logging.getLogger(__name__)

PROBE_SECONDS = 1.0

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
    resume: float | None = None,
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
    `connect_timeout` (30): how long this call waits for ranks and daemons. `resume` (30, and at
    most `timeout`): how long a daemon or a network that is gone is waited for; then everything
    goes on, with the same bits. 0: not at all. Equal on all ranks. `insecure`: an embedded
    daemon may listen to other hosts though nobody is authenticated. `weight`: see
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
        resume=resume,
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
            insecure=settings.insecure,
            resumes=settings.resume > 0,
            timeout_seconds=settings.connect_timeout,
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
        seat = Seat(self._daemons[worker], self._request(worker, urgent=urgent))
        carrier = seat.take()

        def ended(_: AggregationError, leaving: bool) -> None:
            _embedded.get_up(seat.address)
            if not leaving:
                seat.end()

        def resumes() -> bool:
            return seat.resumes and pipeline.over is None

        mail = Mail(self._rank, self._world_size, seat.page_bytes, seat.post, resumes=resumes)
        how = self._settings.timeout, guard.judge, self._settings.first_timeout
        if seat.resumes:
            recovery = Recovery(seat, self._rank, mail.reset)
            pipeline: Pipeline = ResumingPipeline(recovery, carrier, *how)
        else:
            pipeline = Pipeline(carrier, *how)
        pipeline.attend(ended)
        return Way(pipeline, mail, seat.leave, carrier.path, seat)

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
        request.resume.FromMilliseconds(int(1000 * min(settings.timeout, settings.resume)))
        return request


def _reach(address: str, described: pb.DescribeResponse) -> list[str]:
    """Where this rank finds each worker: the same way as the first."""
    local = address.startswith("unix:")
    others = [
        f"unix:{worker.socket}" if local else worker.addresses[0]
        for worker in described.workers
    ]
    return [address, *others]
