"""gRPC in, calls out, errors to statuses. No decisions here."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from gradwire_proto import PROTOCOL, wire
from gradwire_proto.text import printable
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import peer_pb2
from gradwire_server import obituary, together
from gradwire_server.admission import check_job
from gradwire_server.errors import (
    BehindError,
    LostError,
    ProtocolError,
    RefusedError,
)
from gradwire_server.events import MOST_EVENTS
from gradwire_server.group import Member, Node, Picture
from gradwire_server.job_status import job_status
from gradwire_server.round import Key
from gradwire_server.seat import read_request
from gradwire_server.statuses import reading
from gradwire_server.whereabouts import network_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.duration_pb2 import Duration

    from gradwire_server.admission import Admission
    from gradwire_server.identity import Identity
    from gradwire_server.job import Job
    from gradwire_server.jobs import Jobs
    from gradwire_server.office import Tray
    from gradwire_server.residuals import Residuals
    from gradwire_server.statuses import Method
    from gradwire_server.trace_calls import Traces

log = logging.getLogger(__name__)

DEFAULT_CONNECT_SECONDS = 30.0
FIRST_MESSAGE_SECONDS = 10.0
STABLE_SECONDS = 1.0
"""How long the end of a rank waits for the other nodes to have what it has."""
_ENDED = "its stream ended without leaving the job"

Context = grpc.aio.ServicerContext[Any, Any]


def handlers(
    aggregator: Aggregator,
    peer: Peer,
    residuals: Residuals,
    traces: Traces,
    refuse: Callable[[Method], Method],
) -> list[grpc.GenericRpcHandler]:
    """Both services. Reduce, Post and Exchange carry raw messages, to spare payloads a copy.

    The others are read here, too: gRPC would fill the log with what was no message.
    `refuse`: see statuses.refusing.
    """

    def unary(
        method: Callable[..., Any], request: type[Message], response: type[Message]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(
            refuse(reading(request, method)),
            response_serializer=response.SerializeToString,
        )

    calls = {
        "Describe": unary(aggregator.describe, pb.DescribeRequest, pb.DescribeResponse),
        "Join": unary(aggregator.join, pb.JoinRequest, pb.JoinResponse),
        "Leave": unary(aggregator.leave, pb.LeaveRequest, pb.LeaveResponse),
        "Status": unary(aggregator.status, pb.StatusRequest, pb.StatusResponse),
        "Reduce": grpc.stream_stream_rpc_method_handler(refuse(aggregator.reduce)),
        "Post": grpc.stream_stream_rpc_method_handler(refuse(aggregator.post)),
        "ReadResiduals": grpc.unary_stream_rpc_method_handler(
            refuse(reading(pb.ReadResidualsRequest, residuals.read)),
            response_serializer=pb.ReadResidualsResponse.SerializeToString,
        ),
        "Trace": grpc.unary_stream_rpc_method_handler(
            refuse(reading(pb.TraceRequest, traces.trace)),
            response_serializer=pb.TraceResponse.SerializeToString,
        ),
        "WriteResiduals": grpc.stream_unary_rpc_method_handler(
            refuse(residuals.write),
            response_serializer=pb.WriteResidualsResponse.SerializeToString,
        ),
    }
    exchange: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Exchange": grpc.stream_stream_rpc_method_handler(refuse(peer.exchange))
    }
    return [
        grpc.method_handlers_generic_handler("gradwire.v1.Aggregator", calls),
        grpc.method_handlers_generic_handler("gradwire.v1.Peer", exchange),
    ]


class Aggregator:
    """Serves the local ranks, and whoever asks for the status."""

    def __init__(self, identity: Identity, jobs: Jobs, admission: Admission) -> None:
        self._identity = identity
        self._jobs = jobs
        self._admission = admission

    async def describe(self, _: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        """Who this daemon is."""
        return pb.DescribeResponse(
            protocol=PROTOCOL,
            version=self._identity.version,
            node_id=self._identity.node_id,
            address=self._identity.address,
            insecure=self._identity.insecure,
            certified=self._identity.certified,
            chunk_bytes=self._identity.chunk_bytes,
            host=socket.gethostname(),
            network=network_id(),
            addresses=self._identity.addresses,
            bandwidth=self._identity.bandwidth,
            workers=[
                pb.Worker(socket=each.socket, addresses=each.addresses)
                for each in self._identity.workers
            ],
        )

    async def join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        """Seat a rank; answer when all nodes are linked."""
        if request.protocol != PROTOCOL:
            host = printable(request.host) or "an unnamed host"
            raise RefusedError(
                f"this daemon is gradwire {self._identity.version} and speaks protocol"
                f" {PROTOCOL}, rank {request.rank} on {host} is"
                f" gradwire {request.version or 'of another release'} and speaks"
                f" {request.protocol}; install the same release on both"
            )
        self._admission.admit(request, context.invocation_metadata() or ())
        try:
            response = await self._seat(request, _picture(request))
        except BehindError as error:
            return pb.JoinResponse(attempt=error.attempt)
        self._admission.seated(request, context.peer())
        return response

    async def _seat(self, request: pb.JoinRequest, picture: Picture) -> pb.JoinResponse:
        job = await self._jobs.enter(picture, request)
        check_job(job.terms.job, request)
        member = Member(request.rank, request.host, request.pid)
        request.progress.rank = request.rank
        seat = job.admit(member, picture, request.node, request.progress)
        try:
            await job.formed(_seconds(request.connect_timeout, DEFAULT_CONNECT_SECONDS))
        except BehindError:
            job.withdraw(request.rank)
            raise
        except BaseException as error:
            gone = isinstance(error, asyncio.CancelledError)
            job.lose(request.rank, "its process ended while it joined" if gone else str(error))
            raise
        job.expect(request.rank)
        return self._seated(request, job, seat.token)

    def _seated(self, request: pb.JoinRequest, job: Job, token: str) -> pb.JoinResponse:
        response = pb.JoinResponse(
            seat=token,
            chunk_bytes=job.terms.chunk_bytes,
            slots=job.terms.slots,
            progress=job.progress,
        )
        if request.shared_memory and job.arena is not None:
            response.arena.path = str(job.arena.path)
            response.arena.nonce = job.arena.nonce
            response.arena.ranks = job.arena.layout.ranks
            response.arena.local_rank = job.arena.local_rank(request.rank)
            response.arena.doorbell = self._identity.doorbell
            if job.keeper is not None:
                response.arena.keeper = str(job.keeper.path)
        return response

    async def reduce(self, _: object, context: Context) -> None:
        """One rank's stream of chunks, in the messages themselves."""
        job: Job | None = None
        rank, life = -1, obituary.Life(0)
        try:
            first = pb.ReduceRequest.FromString(await _read(context))
            await _answer(context)
            found, rank = self._jobs.find_seat(first.seat)
            found.open(rank, _Stream(context, found.subject(rank)))
            # Only now: a second stream with the same seat must not end the first.
            job, life = found, _life(found, rank, context)
            while (data := await context.read()) is not grpc.aio.EOF:
                request, payload = wire.split(data, pb.ReduceRequest)
                if request.HasField("spec"):
                    job.engine.accounts.said(
                        rank, request.steps, request.communicating_nanoseconds
                    )
                    job.engine.contribute(rank, *read_request(request, payload))
                else:
                    job.engine.settling.hold(
                        rank, Key(request.settled_sequence, request.settled_chunk)
                    )
        except (DecodeError, ValueError) as error:
            raise ProtocolError(f"this is no ReduceRequest: {error}") from None
        finally:
            if job is not None:
                job.mourn(rank, life, _ENDED)

    async def post(self, _: object, context: Context) -> None:
        """One rank's letters, in the messages themselves; its end is no more than that."""
        try:
            first = pb.PostRequest.FromString(await _read(context))
        except DecodeError as error:
            raise ProtocolError(f"this is no PostRequest: {error}") from None
        await _answer(context)
        job, rank = self._jobs.find_seat(first.seat)
        tray, ready = job.tray(rank), asyncio.Event()
        tray.open(ready.set)
        writer = asyncio.create_task(_empty(tray, ready, context, job.subject(rank)))
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                job.send(rank, data)
        except BaseException as error:
            broke = isinstance(error, ProtocolError)
            job.lose(rank, str(error) if broke else "its stream of letters broke")
            raise
        finally:
            writer.cancel()

    async def leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        """Free a seat."""
        try:
            job, rank = self._jobs.find_seat(request.seat)
        except RefusedError:
            return pb.LeaveResponse()
        # Nobody else may have the results that this node has.
        await job.engine.settling.stable(STABLE_SECONDS)
        job.leave(rank)
        return pb.LeaveResponse()

    async def status(
        self, _: pb.StatusRequest, context: Context | None = None
    ) -> pb.StatusResponse:
        """What the daemon is doing, with all of its workers."""
        response = pb.StatusResponse(
            version=self._identity.version,
            node_id=self._identity.node_id,
            address=self._identity.address,
            socket=self._identity.socket,
            metrics=self._identity.metrics,
            jobs=[job_status(job) for job in self._jobs.all],
            events=self._identity.events.latest(),
        )
        workers = await together.ask(each.socket for each in self._identity.workers)
        together.add(response, workers, MOST_EVENTS)
        response.uptime.FromMilliseconds(
            int(1000 * (time.monotonic() - self._identity.started))
        )
        return response


class Peer:
    """Serves the other daemons."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def exchange(self, _: object, context: Context) -> None:
        """One stream of frames; waits for the generation's first local rank."""
        try:
            hello = peer_pb2.Frame.FromString(await _read(context)).hello
            async with asyncio.timeout(DEFAULT_CONNECT_SECONDS):
                job = await self._jobs.await_attempt(hello.generation, hello.attempt)
        except TimeoutError:
            raise LostError("none of this node's ranks has joined yet") from None
        except DecodeError as error:
            raise ProtocolError(f"this is no Frame: {error}") from None
        job.transport.vouch(hello.node, context.peer(), context.auth_context())
        await job.transport.accept(hello, context.read, context.write)


class _Stream:
    """See seat.Carrier: responses on a Reduce stream."""

    inline = True

    def __init__(self, context: Context, subject: dict[str, object]) -> None:
        self._context = context
        self._subject = subject
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer = asyncio.create_task(self._pump())
        context.add_done_callback(self._stop)  # type: ignore[arg-type]  # hinted for sync calls

    def _stop(self, _: object) -> None:
        self._writer.cancel()

    def send(self, response: bytes) -> None:
        """See seat.Carrier. The rank's chunks in flight bound the queue."""
        self._queue.put_nowait(response)

    async def _pump(self) -> None:
        while True:
            response = await self._queue.get()
            try:
                await self._context.write(response)
            except (grpc.RpcError, grpc.aio.InternalError, grpc.aio.UsageError) as error:
                log.info("a rank's stream is gone: %s", error, extra=self._subject)
                return


async def _empty(
    tray: Tray, ready: asyncio.Event, context: Context, subject: dict[str, object]
) -> None:
    """Write what is in a tray, as fast as the rank reads it. Runs until cancelled."""
    try:
        while True:
            while (response := tray.take()) is not None:
                await context.write(response)
            ready.clear()
            await ready.wait()
    except (grpc.RpcError, grpc.aio.InternalError, grpc.aio.UsageError) as error:
        log.info("a rank's stream of letters is gone: %s", error, extra=subject)


async def _read(context: Context) -> bytes:
    """The first message of a stream. Raises ProtocolError where it does not come."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
            data = await context.read()
    except TimeoutError:
        raise ProtocolError(
            f"nothing came on the stream within {FIRST_MESSAGE_SECONDS:g} s"
        ) from None
    if data is grpc.aio.EOF:
        raise ProtocolError("the stream ended before its first message")
    return bytes(data)


async def _answer(context: Context) -> None:
    """Take the call, before anything is said on it.

    The first message would do that, too; but where the call ends while gRPC is writing it, both
    would, which gRPC takes for a mistake of ours and leaves the call open.
    """
    await context.send_initial_metadata(())


def _life(job: Job, rank: int, context: Context) -> obituary.Life:
    member = job.group.members[rank]
    return obituary.of(member.pid, member.host, context.peer())


def _picture(request: pb.JoinRequest) -> Picture:
    nodes = (
        Node(
            node.id,
            node.address,
            node.host,
            tuple(node.ranks),
            tuple(node.addresses),
            node.bandwidth,
        )
        for node in request.nodes
    )
    return Picture(request.generation, request.world_size, tuple(nodes))


def _seconds(duration: Duration, default: float) -> float:
    return duration.ToTimedelta().total_seconds() or default
