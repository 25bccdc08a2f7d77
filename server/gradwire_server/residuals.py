"""Residuals on their way to a rank's checkpoint, and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import torch
from google.protobuf.message import DecodeError

from gradwire_proto.residuals import ITEMSIZE, parts_of
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.wires import MOST_ELEMENTS
from gradwire_server.errors import ProtocolError
from gradwire_server.feedback import Kept

if TYPE_CHECKING:
    from gradwire_server.feedback import Feedback
    from gradwire_server.jobs import Jobs

    Context = grpc.aio.ServicerContext[Any, Any]

SILENCE_SECONDS = 30.0
"""How long a rank may take from one part to the next."""

FIRST_SECONDS = 10.0
"""Before it has said who it is."""


class Residuals:
    """Serves the local ranks' checkpoints."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def read(self, request: pb.ReadResidualsRequest, context: Context) -> None:
        """All that a generation's node keeps."""
        job, _ = self._jobs.find_seat(request.seat)
        feedback, geometry = job.engine.feedback, job.engine.geometry
        for kept in feedback.kept(set(request.revoked)):
            head = pb.Residual(
                identity=kept.identity,
                elements=kept.elements,
                counts=kept.counts,
                size=kept.size * ITEMSIZE,
                geometry=geometry,
            )
            await context.write(pb.ReadResidualsResponse(residual=head))
            for values in feedback.values(kept):
                for part in parts_of(kept.identity, values):
                    await context.write(pb.ReadResidualsResponse(residual=part))

    async def write(self, _: object, context: Context) -> pb.WriteResidualsResponse:
        """Go on with what a checkpoint has, and with nothing else.

        Raises ProtocolError for what makes no sense, ReductionError where memory is short.
        """
        first = await _next(context, FIRST_SECONDS)
        if first is None:
            raise ProtocolError("expected a seat, got nothing")
        job, _rank = self._jobs.find_seat(first.seat)
        feedback, geometry = job.engine.feedback, job.engine.geometry
        feedback.forget()
        response = pb.WriteResidualsResponse()
        while (part := await _next(context)) is not None:
            if await _restore(feedback, geometry, part.residual, context):
                response.restored += 1
            else:
                response.dropped += 1
        return response


async def _restore(
    feedback: Feedback, geometry: int, head: pb.Residual, context: Context
) -> bool:
    """Whether it fits; its parts are read in any case."""
    if head.elements > MOST_ELEMENTS or head.size not in (0, head.elements * ITEMSIZE):
        raise ProtocolError(
            f"expected a residual of at most {MOST_ELEMENTS} elements, of {ITEMSIZE} bytes or"
            f" none each, got {head.elements} elements in {head.size} bytes"
        )
    size = head.size // ITEMSIZE
    kept = Kept(head.identity, head.elements, tuple(head.counts), size)
    restoring = await feedback.restore(kept) if head.geometry == geometry else None
    missing = head.size
    while missing:
        part = await _next(context)
        payload = b"" if part is None else part.residual.payload
        if not 0 < len(payload) <= missing or len(payload) % ITEMSIZE:
            raise ProtocolError(
                f"expected up to {missing} bytes more of a residual, got {len(payload)}"
            )
        missing -= len(payload)
        if restoring is not None:
            restoring.write(torch.frombuffer(payload, dtype=torch.float32))
    return restoring is not None


async def _next(
    context: Context, seconds: float = SILENCE_SECONDS
) -> pb.WriteResidualsRequest | None:
    try:
        async with asyncio.timeout(seconds):
            part = await context.read()
    except TimeoutError:
        raise ProtocolError(f"nothing came for {seconds:g} s") from None
    if part is grpc.aio.EOF:
        return None
    try:
        return pb.WriteResidualsRequest.FromString(part)
    except DecodeError as error:
        raise ProtocolError(f"this is no WriteResidualsRequest: {error}") from None
