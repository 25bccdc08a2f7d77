"""What is wrong with a call, as gRPC says it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from gradwire_server.errors import (
    GradwireServerError,
    LimitError,
    LostError,
    ProtocolError,
    ReductionError,
    RefusedError,
    StartError,
    StrangerError,
    UnprovenError,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from prometheus_client import Counter

    from gradwire_server.crowd import Crowd

log = logging.getLogger(__name__)

_STATUS: list[tuple[type[GradwireServerError], grpc.StatusCode]] = [
    (LimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (StrangerError, grpc.StatusCode.PERMISSION_DENIED),
    (UnprovenError, grpc.StatusCode.UNAUTHENTICATED),
    (RefusedError, grpc.StatusCode.FAILED_PRECONDITION),
    (StartError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ProtocolError, grpc.StatusCode.INVALID_ARGUMENT),
    (LostError, grpc.StatusCode.UNAVAILABLE),
    (ReductionError, grpc.StatusCode.ABORTED),
]

Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Context], Awaitable[Any]]


def reading(kind: type[Message], method: Method) -> Method:
    """A method that is called with the bytes of its request."""

    async def call(data: bytes, context: Context) -> Any:  # noqa: ANN401
        try:
            request = kind.FromString(data)
        except DecodeError as error:
            raise ProtocolError(f"this is no {kind.__name__}: {error}") from None
        return await method(request, context)

    return call


def refusing(method: Method, errors: Counter, crowd: Crowd) -> Method:
    """Our errors as gRPC's statuses; refusals are counted, by kind. Nor does one of the crowd
    get more calls than it may have open.

    gRPC remembers the last call, its error and thereby its frames until the next call comes:
    so it is told outside of them, or they would keep a job's memory and connections.
    """

    async def call(request: Any, context: Context) -> Any:  # noqa: ANN401
        try:
            with crowd.joined(context.peer()):
                return await method(request, context)
        except GradwireServerError as error:
            code = next(code for kind, code in _STATUS if isinstance(error, kind))
            text = str(error)
            if isinstance(error, RefusedError):
                # The others are counted where they end something.
                log.warning("refused %s: %s", context.peer() or "a caller", text)
                errors.labels(kind=type(error).__name__).inc()
        await context.abort(code, text)
        raise AssertionError("abort raises")

    return call
