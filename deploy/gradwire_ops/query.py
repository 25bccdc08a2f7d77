"""Asks a daemon a question over gRPC."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import grpc

from gradwire import _certificates
from gradwire._errors import ConnectError
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWER_SECONDS = 5.0

TRACE_GRACE_SECONDS = 10.0
"""How much longer than asked for the answer may take."""

# A proxy in the environment would be asked even for 127.0.0.1.
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


class UnreachableError(Exception):
    """No daemon answers there; the text has the address and gRPC's reason."""


def describe(address: str, seconds: float = ANSWER_SECONDS) -> pb.DescribeResponse:
    """Who the daemon at this address is. Raises UnreachableError."""
    with _stub(address) as stub:
        return stub.Describe(pb.DescribeRequest(), timeout=seconds)


def status(address: str, seconds: float = ANSWER_SECONDS) -> pb.StatusResponse:
    """What the daemon at this address is doing. Raises UnreachableError."""
    with _stub(address) as stub:
        return stub.Status(pb.StatusRequest(), timeout=seconds)


class Recording(NamedTuple):
    """What a daemon has told of a trace."""

    parts: list[pb.TraceResponse]
    lost: str = ""
    """Why it told no more, in words."""

    @property
    def node_id(self) -> str:
        """Whose it is."""
        return self.parts[0].source.node_id

    @property
    def nodes(self) -> set[str]:
        """The ids of all that have a part in its jobs."""
        jobs = [job for part in self.parts for job in part.source.jobs]
        return {node for job in jobs for node in job.nodes}


def trace(address: str, seconds: float, calls: list[grpc.Call] | None = None) -> Recording:
    """What the daemon there and its ranks do for so long; less, where it is lost meanwhile, or
    where the call, which is added to `calls`, is cancelled.

    Raises UnreachableError where it says nothing at all.
    """
    parts: list[pb.TraceResponse] = []
    call: grpc.Call | None = None
    try:
        with _stub(address) as stub:
            request = pb.TraceRequest(seconds=seconds)
            call = stub.Trace(request, timeout=seconds + TRACE_GRACE_SECONDS)
            if calls is not None:
                calls.append(call)
            parts.extend(call)
    except UnreachableError as error:
        if not parts:
            raise
        if call is None or call.code() != grpc.StatusCode.CANCELLED:
            return Recording(parts, f"{error}: its trace ends before its time")
    return Recording(parts)


@contextmanager
def _stub(address: str) -> Iterator[AggregatorStub]:
    try:
        channel = _certificates.channel(address, _OPTIONS)
    except ConnectError as error:
        raise UnreachableError(f"can't ask {address}: {error}") from error
    with channel:
        try:
            yield AggregatorStub(channel)
        except grpc.RpcError as error:
            reason = error.details() if isinstance(error, grpc.Call) else str(error)
            reason = _certificates.explain(address) or reason
            raise UnreachableError(f"no daemon answers at {address}: {reason}") from error
