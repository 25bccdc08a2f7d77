"""Starts the parts of a daemon in order, and stops them in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import uuid
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import peer_pb2
from gradwire_server import listening, logs, metrics_page, shared_memory, web
from gradwire_server.admission import Admission
from gradwire_server.allocator import keep_memory
from gradwire_server.crowd import Crowd
from gradwire_server.doorbell import Doorbell
from gradwire_server.errors import StartError, StoppingError
from gradwire_server.identity import Identity
from gradwire_server.job import Job
from gradwire_server.jobs import Jobs
from gradwire_server.kernels import Kernels
from gradwire_server.memory_folder import MemoryFolder
from gradwire_server.metrics import Metrics
from gradwire_server.reduce.choose import SCHEDULES
from gradwire_server.residuals import Residuals
from gradwire_server.rpc import Aggregator, Peer, handlers
from gradwire_server.statuses import refusing
from gradwire_server.terms import Terms
from gradwire_server.trace_calls import Traces
from gradwire_server.transport.credentials import PLAIN, Certified
from gradwire_server.transport.precedence import Precedence
from gradwire_server.workers import Fleet, Report, forked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gradwire_server.feedback import Feedback
    from gradwire_server.group import Group
    from gradwire_server.settings import Settings
    from gradwire_server.shared_memory import Arena
    from gradwire_server.transport.credentials import Plain

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""How long open calls may take to end when the daemon stops."""

EMBEDDED_IDLE_SECONDS = 60.0
"""An embedded daemon to which no rank ever came ends after this."""

OPTIONS: list[tuple[str, Any]] = [
    # Without it a second daemon on this port would start, and get every other connection.
    ("grpc.so_reuseport", 0),
    # A chunk has at most 4 MiB. Whoever calls may make us keep one message, before we know him.
    ("grpc.max_receive_message_length", 8 << 20),
    # Nobody of ours compresses: it would be a way to make us unpack a gigabyte of zeros.
    ("grpc.compression_enabled_algorithms_bitset", 1),
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
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(identity.events.listening())
        stack.callback(kernels.close)
        shown = _show(settings, metrics, stack)
        jobs = _make_jobs(settings, kernels, metrics, shown)
        doorbell = Doorbell(settings.shm_dir, jobs.find_seat)
        if settings.embedded:
            # Its socket's folder was made for it.
            stack.callback(_remove_if_empty, settings.socket.parent)
        lock = stack.enter_context(listening.owned_socket(settings.socket))
        if removed := shared_memory.remove_orphans(settings.shm_dir):
            log.info("removed %d arenas that no process uses any more", removed)
        identity.workers = await asyncio.to_thread(fleet.await_reports)
        aggregator = Aggregator(identity, jobs, Admission(settings.key))
        identity.metrics = stack.enter_context(_page(settings, identity, metrics, aggregator))
        doorbell.open()
        stack.callback(doorbell.close)
        identity.doorbell = str(doorbell.path)
        await _start_server(stack, settings, identity, jobs, aggregator, metrics, lock, shown)
        if settings.embedded:
            idle = asyncio.create_task(_stop_when_idle(jobs, stop))
            stack.callback(idle.cancel)
        yield identity


def _page(
    settings: Settings, identity: Identity, metrics: Metrics, aggregator: Aggregator
) -> contextlib.AbstractContextManager[str]:
    """For people and for Prometheus; gives its address."""
    ask = web.asking(asyncio.get_running_loop(), partial(aggregator.status, pb.StatusRequest()))
    pages = [worker.metrics for worker in identity.workers]
    where, names = settings.metrics_listen, settings.metrics_hosts
    return metrics_page.serving(where, metrics, pages, ask, names)


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
    crowd = Crowd(settings.max_calls)
    refuse = partial(refusing, errors=metrics.errors, crowd=crowd)
    traces = Traces(metrics.recorder, jobs, identity.node_id)
    server.add_generic_rpc_handlers(
        handlers(aggregator, Peer(jobs), Residuals(jobs), traces, refuse)
    )
    checks = await _add_standard_services(server)
    listening.bind(server, settings, identity, lock, shown)
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


def _make_jobs(settings: Settings, kernels: Kernels, metrics: Metrics, shown: Plain) -> Jobs:
    folder = MemoryFolder(settings.shm_dir, settings.max_memory)
    precedence = Precedence()

    def make(group: Group, request: pb.JoinRequest, feedback: Feedback | None) -> Job:
        needed = request.shared_memory
        arena = _make_arena(settings, group.local_ranks, folder, needed=needed)
        terms = _agree(settings, request, folder, shown, arena)
        return Job(group, terms, arena, kernels, metrics, precedence, request.attempt, feedback)

    return Jobs(make, settings.max_jobs)


def _agree(
    settings: Settings,
    request: pb.JoinRequest,
    folder: MemoryFolder,
    shown: Plain,
    arena: Arena | None,
) -> Terms:
    timeout = request.timeout.ToTimedelta().total_seconds() or 60.0
    return Terms(
        settings.chunk_bytes,
        settings.slots if arena is None else arena.layout.slots,
        timeout,
        request.warn_after.ToTimedelta().total_seconds() or timeout / 4,
        SCHEDULES.get(settings.schedule),
        settings.connections,
        folder,
        request.urgent,
        min(timeout, request.resume.ToTimedelta().total_seconds()),
        request.first_timeout.ToTimedelta().total_seconds(),
        shown,
        request.job,
    )


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _make_arena(
    settings: Settings, ranks: tuple[int, ...], folder: MemoryFolder, *, needed: bool
) -> Arena | None:
    """Shared memory, whoever comes first: the ranks after it may want what it does not."""
    try:
        return shared_memory.create(ranks, settings.slots, settings.chunk_bytes, folder)
    except StartError:
        if needed:
            raise
        return None


async def _stop_when_idle(jobs: Jobs, stop: asyncio.Event) -> None:
    """An embedded daemon lives as long as its job."""
    await jobs.idle(EMBEDDED_IDLE_SECONDS)
    stop.set()
