"""The lines to a daemon: calls over gRPC, streams of chunks and letters, and the doorbell."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import grpc

from gradwire import _certificates, _token
from gradwire._errors import ConnectError, LostError
from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import aggregator_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

log = logging.getLogger(__name__)

LEAVE_SECONDS = 2.0
PROGRESS_SECONDS = 10.0
"""A rank that waits for its daemon says so after this time."""
LONGEST_PACKET = 64 * 1024

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # A proxy meant for the web would be asked even for 127.0.0.1.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
"""What becomes of a call where the daemon is gone, or stops meanwhile."""


class Line(Protocol):
    """Carries chunks both ways, in order."""

    daemon: str
    """The daemon at the other end, in words."""

    def send(self, request: pb.ReduceRequest, payload: memoryview) -> None:
        """Hand a request over, with its chunk. Does not wait.

        Raises LostError where the line is broken.
        """
        ...

    def receive(self) -> tuple[pb.ReduceResponse, memoryview]:
        """Wait for the next response. Raises LostError where the line breaks or is closed."""
        ...

    def close(self) -> None:
        """End the line; `receive`, in whatever thread, raises."""
        ...


class Daemon:
    """Calls to one daemon."""

    def __init__(self, address: str) -> None:
        """Raises ConnectError where the certificates can't be read."""
        self.address = address
        self._channel = _certificates.channel(address, OPTIONS)
        self._stub = aggregator_pb2_grpc.AggregatorStub(self._channel)

    def describe(self, timeout_seconds: float, *, wait: bool) -> pb.DescribeResponse:
        """Who the daemon is; with wait, as soon as it answers. Raises ConnectError."""
        call = self._stub.Describe.future(
            pb.DescribeRequest(), timeout=timeout_seconds, wait_for_ready=wait
        )
        try:
            return self._answer(call, timeout_seconds)
        except grpc.RpcError as error:
            reason = _certificates.explain(self.address) or _details(error)
            raise ConnectError(
                f"no gradwire daemon answered at {self.address} within {timeout_seconds:g} s"
                f" ({reason}). Start one with `gradwire serve`, set GRADWIRE_DAEMON to"
                " where it listens, or unset it to have an embedded one"
            ) from error

    def _answer(self, call: Any, timeout_seconds: float) -> pb.DescribeResponse:  # noqa: ANN401
        try:
            early: pb.DescribeResponse = call.result(PROGRESS_SECONDS)
        except grpc.FutureTimeoutError:
            found = _certificates.explain(self.address)
            log.warning(
                "no daemon answers at %s yet%s; waiting for it, %g s in all (connect_timeout)",
                self.address,
                found and f" ({found})",
                timeout_seconds,
            )
            late: pb.DescribeResponse = call.result()
            return late
        return early

    def join(self, request: pb.JoinRequest, timeout_seconds: float) -> pb.JoinResponse:
        """Take a seat. Raises ConnectError with the daemon's reason."""
        try:
            return self._stub.Join(
                request, timeout=timeout_seconds, metadata=_token.metadata(self.address)
            )
        except grpc.RpcError as error:
            raise ConnectError(
                f"the daemon at {self.address} gave rank {request.rank} no seat:"
                f" {_details(error)}",
                final=isinstance(error, grpc.Call) and error.code() not in _PASSING,
                joining=True,
            ) from error

    def leave(self, seat: str) -> None:
        """Give the seat back, if the daemon is still there to take it."""
        try:
            self._stub.Leave(pb.LeaveRequest(seat=seat), timeout=LEAVE_SECONDS)
        except grpc.RpcError:
            return

    def read_residuals(self, seat: str, revoked: Iterable[int]) -> Iterator[pb.Residual]:
        """What lossy wires have lost at this node. Raises LostError where it can't be had."""
        request = pb.ReadResidualsRequest(seat=seat, revoked=revoked)
        try:
            for part in self._stub.ReadResiduals(request):
                yield part.residual
        except (grpc.RpcError, ValueError) as error:
            # A channel that is closed raises ValueError.
            raise LostError(f"the daemon at {self.address}: {_details(error)}") from error

    def write_residuals(
        self, seat: str, parts: Iterable[pb.Residual]
    ) -> pb.WriteResidualsResponse:
        """Have the daemon go on with these. Raises LostError where it does not."""
        first = pb.WriteResidualsRequest(seat=seat)
        others = (pb.WriteResidualsRequest(residual=part) for part in parts)
        try:
            return self._stub.WriteResiduals(chain([first], others))
        except (grpc.RpcError, ValueError) as error:
            raise LostError(f"the daemon at {self.address}: {_details(error)}") from error

    def stream(self, seat: str) -> Stream:
        """The line for a rank that shares no memory with the daemon."""
        call: Any = self._channel.stream_stream("/gradwire.v1.Aggregator/Reduce")
        return Stream(call, seat, self.address)

    def post(self, seat: str) -> Post:
        """The line for letters."""
        call: Any = self._channel.stream_stream("/gradwire.v1.Aggregator/Post")
        return Post(call, seat, self.address)

    def close(self) -> None:
        """Drop the connection."""
        self._channel.close()


class Doorbell:
    """The line beside an arena: a Unix seqpacket socket, one message a packet."""

    def __init__(self, doorbell: str, seat: str, address: str) -> None:
        """Raises OSError where the socket can't be reached from here."""
        self.daemon = f"the daemon at {address}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(doorbell)
            self._socket.send(pb.Ring(seat=seat).SerializeToString())
        except OSError:
            self._socket.close()
            raise
        _doorbells.add(self)

    def forget(self) -> None:
        """In a forked child: let go of the socket, which is the parent's.

        The daemon takes the end of the connection for the end of the rank, so no child may keep
        it open.
        """
        self._socket.close()

    def ring(self, ring: pb.Ring) -> None:
        """Tell the daemon. Raises LostError where it is gone."""
        try:
            self._socket.send(ring.SerializeToString())
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> pb.ReduceResponse:
        """What the daemon says next. Raises LostError where it is gone, or after `close`."""
        try:
            packet = self._receive()
        except OSError as error:
            raise self._lost() from error
        if not packet:
            raise self._lost()
        return pb.ReduceResponse.FromString(packet)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(LONGEST_PACKET)
        except ConnectionResetError:
            # Said once where the daemon has not read all; what it sent before is still there.
            return self._socket.recv(LONGEST_PACKET)

    def close(self) -> None:
        """End the line; `receive`, in whatever thread, raises."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._socket.close()

    def _lost(self) -> LostError:
        return LostError(f"{self.daemon} is gone: it closed the connection")


_doorbells: WeakSet[Doorbell] = WeakSet()


def _forget_doorbells() -> None:
    for doorbell in _doorbells:
        doorbell.forget()


os.register_at_fork(after_in_child=_forget_doorbells)


class _Messages(Generic[M]):
    """A gRPC stream of messages with payloads."""

    def __init__(
        self, method: Callable[..., Any], first: Message, response: type[M], daemon: str
    ) -> None:
        self._daemon = daemon
        self._response = response
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._requests.put(first.SerializeToString())
        self._call = method(self._outgoing())

    def _outgoing(self) -> Iterator[bytes]:
        while (request := self._requests.get()) is not None:
            yield request

    def send(self, request: Message, payload: memoryview) -> None:
        """Hand a message over. Raises LostError where the stream has ended."""
        if not self._call.is_active():
            raise self._lost(self._call)
        self._requests.put(wire.join(request, payload))

    def receive(self) -> tuple[M, memoryview]:
        """Wait for the next message. Raises LostError where the stream has ended."""
        try:
            return wire.split(next(self._call), self._response)
        except (grpc.RpcError, StopIteration, ValueError) as error:
            raise self._lost(error) from error

    def finish(self) -> None:
        """Nothing more is sent."""
        self._requests.put(None)

    def close(self) -> None:
        """End the stream at once."""
        self.finish()
        self._call.cancel()

    def _lost(self, error: object) -> LostError:
        reason = _details(error) if isinstance(error, grpc.RpcError) else "its stream ended"
        return LostError(f"{self._daemon} is gone: {reason}")


class Stream:
    """Line over the Reduce stream; chunks travel in the messages."""

    def __init__(self, method: Callable[..., Any], seat: str, address: str) -> None:
        self.daemon = f"the daemon at {address}"
        first = pb.ReduceRequest(seat=seat)
        self._messages = _Messages(method, first, pb.ReduceResponse, self.daemon)

    def send(self, request: pb.ReduceRequest, payload: memoryview) -> None:
        """See Line."""
        self._messages.send(request, payload)

    def receive(self) -> tuple[pb.ReduceResponse, memoryview]:
        """See Line."""
        return self._messages.receive()

    def close(self) -> None:
        """See Line."""
        self._messages.close()


class Post:
    """See _mail.PostLine: the Post stream."""

    def __init__(self, method: Callable[..., Any], seat: str, address: str) -> None:
        first, daemon = pb.PostRequest(seat=seat), f"the daemon at {address}"
        self._messages = _Messages(method, first, pb.PostResponse, daemon)

    def send(self, note: pb.Note, payload: memoryview) -> None:
        """See PostLine. Where the line is broken, who reads it learns why."""
        with contextlib.suppress(LostError):
            self._messages.send(pb.PostRequest(note=note), payload)

    def receive(self) -> tuple[pb.Note, memoryview]:
        """See PostLine."""
        response, payload = self._messages.receive()
        return response.note, payload

    def finish(self) -> None:
        """See PostLine."""
        self._messages.finish()

    def close(self) -> None:
        """See PostLine."""
        self._messages.close()


def _details(error: object) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
