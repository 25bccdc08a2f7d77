"""Starts the parts of a daemon in order, and stops them in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import logging
import os
import signal
import socket
import uuid
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from gradwire_proto.addresses import (
    is_unspecified,
    join_address,
    split_address,
    split_advertised,
    split_list,
)
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import peer_pb2
from gradwire_server import logs, metrics_page, shared_memory, web
from gradwire_server.allocator import keep_memory
from gradwire_server.doorbell import Doorbell
from gradwire_server.errors import StartError, StoppingError
from gradwire_server.job import Job
from gradwire_server.jobs import Jobs
from gradwire_server.kernels import Kernels
from gradwire_server.metrics import Metrics
from gradwire_server.reduce.choose import SCHEDULES
from gradwire_server.residuals import Residuals
from gradwire_server.rpc import Aggregator, Identity, Peer, handlers
from gradwire_server.terms import Terms
from gradwire_server.trace_calls import Traces
from gradwire_server.transport.credentials import PLAIN, Certified
from gradwire_server.transport.precedence import Precedence
from gradwire_server.workers import Fleet, Report, forked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from gradwire_server.feedback import Feedback
    from gradwire_server.group import Group
    from gradwire_server.settings import Settings
    from gradwire_server.shared_memory import Arena
    from gradwire_server.transport.credentials import Plain

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""How long open calls may take to end when the daemon stops."""

LONGEST_LOCK = 4096

EMBEDDED_IDLE_SECONDS = 60.0
"""An embedded daemon to which no rank ever came ends after this."""

OPTIONS: list[tuple[str, Any]] = [
    # Without it a second daemon on this port would start, and get every other connection.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # Peers ask every 10 s whether we are there (transport.grpc): that is no flood.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # And we ask them: a host that vanishes sends nothing, in either direction.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Exit code: 0 stopped in good order, 1 could not start."""
    logs.set_up(settings.log_level, settings.log_format)
    keep_memory()
    # What is loaded by now stays: the collections at the end of each job need not look at it.
    gc.freeze()
    try:
        with forked(settings) as (own, fleet):
            return uvloop.run(_serve(own, fleet))
    except StartError as error:
        log.error("%s", error)
        return 1


async def _serve(settings: Settings, fleet: Fleet) -> int:
    """Exit code: 1 where a worker was lost."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _running(settings, fleet, stop) as identity:
        parts = [f"listen {','.join(identity.addresses)}", f"socket {identity.socket}"]
        if identity.metrics:
            parts.append(f"metrics http://{identity.metrics}/metrics")
        if identity.workers:
            parts.append(f"{1 + len(identity.workers)} workers")
        fleet.watch(stop.set)
        fleet.report(Report(identity.socket, identity.addresses, identity.metrics))
        if settings.open:
            log.warning(
                "listening on %s without certificates (insecure): whoever reaches that can read"
                " and change gradients",
                settings.listen,
            )
        log.info("ready: %s", ", ".join(parts))
        await stop.wait()
        fleet.unwatch()
        log.info("stopping")
    return 1 if fleet.broken else 0


@contextlib.asynccontextmanager
async def _running(
    settings: Settings, fleet: Fleet, stop: asyncio.Event
) -> AsyncIterator[Identity]:
    """A daemon that serves; when the block ends, its jobs are told and all is put away."""
    release = version("gradwire")
    metrics = Metrics(CollectorRegistry(), release)
    kernels = Kernels(settings.kernel_threads)
    identity = Identity(release, uuid.uuid4().hex)
    precedence = Precedence()
    jobs = Jobs(
        lambda group, request, feedback: _make_job(
            settings, group, request, kernels, metrics, precedence, feedback, shown
        )
    )
    doorbell = Doorbell(settings.shm_dir, jobs.find_seat)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(identity.events.listening())
        shown = _show(settings, metrics, stack)
        stack.callback(kernels.close)
        if settings.embedded:
            # Its socket's folder was made for it.
            stack.callback(_remove_if_empty, settings.socket.parent)
        lock = stack.enter_context(_owned_socket(settings.socket))
        removed = shared_memory.remove_orphans(settings.shm_dir)
        if removed:
            log.info("removed %d arenas that no process uses any more", removed)
        identity.workers = await asyncio.to_thread(fleet.await_reports)
        aggregator = Aggregator(identity, jobs)
        ask = web.asking(
            asyncio.get_running_loop(), partial(aggregator.status, pb.StatusRequest())
        )
        identity.metrics = stack.enter_context(
            metrics_page.serving(
                settings.metrics_listen,
                metrics,
                [worker.metrics for worker in identity.workers],
                ask,
            )
        )
        doorbell.open()
        stack.callback(doorbell.close)
        identity.doorbell = str(doorbell.path)
        await _start_server(stack, settings, identity, jobs, aggregator, metrics, lock, shown)
        if settings.embedded:
            idle = asyncio.create_task(_stop_when_idle(jobs, stop))
            stack.callback(idle.cancel)
        yield identity


def _show(settings: Settings, metrics: Metrics, stack: contextlib.AsyncExitStack) -> Plain:
    """What other hosts are shown, kept up to date within the stack."""
    if settings.certs is None:
        return PLAIN
    shown = Certified(settings.certs)
    log.info("certificates from %s: %s", settings.certs, shown.describe())
    metrics.certificates.add(shown, lambda: [("", shown)])
    stack.callback(asyncio.create_task(shown.watch()).cancel)
    return shown


async def _start_server(  # noqa: PLR0913 - what a server is made of
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    identity: Identity,
    jobs: Jobs,
    aggregator: Aggregator,
    metrics: Metrics,
    lock: int,
    shown: Plain,
) -> None:
    """Serve both services; the stack ends health checks, then jobs, then calls."""
    server = grpc.aio.server(options=OPTIONS)
    traces = Traces(metrics.recorder, jobs, identity.node_id)
    server.add_generic_rpc_handlers(
        handlers(aggregator, Peer(jobs), Residuals(jobs), traces, metrics.errors)
    )
    checks = await _add_standard_services(server)
    _bind(server, settings, identity, lock, shown)
    await server.start()
    if settings.trace is not None:
        await stack.enter_async_context(traces.kept(settings.trace))
    stopping = StoppingError(f"the daemon at {identity.address} is stopping")
    stack.push_async_callback(server.stop, GRACE_SECONDS)
    stack.push_async_callback(jobs.close, stopping)
    stack.push_async_callback(checks.enter_graceful_shutdown)


async def _add_standard_services(server: grpc.aio.Server) -> health.aio.HealthServicer:
    """Health checking and reflection, as any gRPC tool expects."""
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = [
        pb.DESCRIPTOR.services_by_name["Aggregator"].full_name,
        peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name,
    ]
    for name in ["", *names]:
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server
    )
    return checks


def _bind(
    server: grpc.aio.Server, settings: Settings, identity: Identity, lock: int, shown: Plain
) -> None:
    before, listen = _inherit(lock), partial(shown.listen, server)
    listening = [_listen(listen, address, before) for address in split_list(settings.listen)]
    _bequeath(lock, listening, identity.doorbell)
    server.add_insecure_port(f"unix:{settings.socket}")
    os.chmod(settings.socket, 0o660)
    identity.socket = str(settings.socket)
    identity.insecure = settings.insecure
    identity.certified = settings.certs is not None
    identity.chunk_bytes = settings.chunk_bytes
    identity.bandwidth = settings.bandwidth
    identity.addresses = _advertised(settings.advertise, listening)
    identity.address = identity.addresses[0]


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


def _listen(
    listen: Callable[[str], int], address: str, before: list[tuple[str, int]]
) -> tuple[str, int]:
    """Host and port, which is now known."""
    host, port = split_address(address)
    for known in [] if port else [known for place, known in before if place == host]:
        with contextlib.suppress(RuntimeError):
            return host, listen(join_address(host, known))
    try:
        return host, listen(address)
    except RuntimeError as error:
        raise StartError(
            f"can't listen on {address}: address already in use, or not this machine's."
            " Is another daemon running? --listen HOST:0 takes any free port"
        ) from error


def _advertised(advertise: str, listening: list[tuple[str, int]]) -> list[str]:
    """What the others are told; a host without a port has the one that we listen on there."""
    if not advertise:
        return [
            join_address(_own_address() if is_unspecified(host) else host, port)
            for host, port in listening
        ]
    ports = dict(reversed(listening))
    told = [split_advertised(address) for address in split_list(advertise)]
    default = listening[0][1]
    return [
        join_address(host, ports.get(host, default) if port is None else port)
        for host, port in told
    ]


def _own_address() -> str:
    """Where others most likely reach this host: its address on the default route, or its name.

    A datagram socket is connected to an address reserved for documentation; nothing is sent.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


@contextlib.contextmanager
def _owned_socket(path: Path) -> Iterator[int]:
    """Make sure that the socket's path is ours alone; remove it in the end.

    Gives the file that says so, in which there is room for a note to whoever comes after us.

    gRPC replaces a socket that is there, even one in use; so a lock beside it says whose it is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o660)
    except OSError as error:
        raise StartError(
            f"can't make the socket {path}: {error}; choose another --socket"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StartError(f"another daemon already uses the socket {path}") from None
    try:
        yield lock
    finally:
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".lock").unlink(missing_ok=True)
        os.close(lock)


def _make_job(  # noqa: PLR0913 - what a job is made of
    settings: Settings,
    group: Group,
    request: pb.JoinRequest,
    kernels: Kernels,
    metrics: Metrics,
    precedence: Precedence,
    feedback: Feedback | None,
    shown: Plain,
) -> Job:
    arena = _make_arena(settings, group.local_ranks, needed=request.shared_memory)
    timeout = request.timeout.ToTimedelta().total_seconds() or 60.0
    terms = Terms(
        settings.chunk_bytes,
        settings.slots if arena is None else arena.layout.slots,
        timeout,
        request.warn_after.ToTimedelta().total_seconds() or timeout / 4,
        SCHEDULES.get(settings.schedule),
        settings.connections,
        settings.shm_dir,
        request.urgent,
        min(timeout, request.resume.ToTimedelta().total_seconds()),
        request.first_timeout.ToTimedelta().total_seconds(),
        shown,
    )
    return Job(group, terms, arena, kernels, metrics, precedence, request.attempt, feedback)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _make_arena(settings: Settings, ranks: tuple[int, ...], *, needed: bool) -> Arena | None:
    """Shared memory, whoever comes first: the ranks after it may want what it does not."""
    try:
        return shared_memory.create(
            ranks, settings.slots, settings.chunk_bytes, settings.shm_dir
        )
    except StartError:
        if needed:
            raise
        return None


async def _stop_when_idle(jobs: Jobs, stop: asyncio.Event) -> None:
    """An embedded daemon lives as long as its job."""
    await jobs.idle(EMBEDDED_IDLE_SECONDS)
    stop.set()
