"""Residuals on their way to a rank's checkpoint, and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import torch

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.feedback import ITEMSIZE, Kept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire_server.job import Jobs

PART_BYTES = 1 << 20

SILENCE_SECONDS = 30.0
"""How long a rank may take from one part to the next."""


class Residuals:
    """Serves the local ranks' checkpoints."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def read(
        self, request: pb.ReadResidualsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """All that a generation's node keeps."""
        job, _ = self._jobs.find_seat(request.seat)
        for kept, elements in job.engine.feedback.kept():
            for part in _parts(kept, elements):
                await context.write(pb.ReadResidualsResponse(residual=part))

    async def write(
        self, _: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.WriteResidualsResponse:
        """Go on with what a checkpoint has. Raises ProtocolError for what makes no sense."""
        first = await _next(context)
        if first is None:
            raise ProtocolError("expected a seat, got nothing")
        job, _rank = self._jobs.find_seat(first.seat)
        response = pb.WriteResidualsResponse()
        while (part := await _next(context)) is not None:
            kept = await _whole(part.residual, context)
            if job.engine.feedback.restore(kept, part.residual.elements):
                response.restored += 1
            else:
                response.dropped += 1
        return response


def _parts(kept: Kept, elements: int) -> Iterator[pb.Residual]:
    data = kept.values.view(torch.uint8).numpy().data
    head = pb.Residual(
        identity=kept.identity, elements=elements, counts=kept.counts, size=len(data)
    )
    for start in range(0, max(1, len(data)), PART_BYTES):
        head.payload = bytes(data[start : start + PART_BYTES])
        yield head
        head = pb.Residual(identity=kept.identity)


async def _whole(head: pb.Residual, context: grpc.aio.ServicerContext[Any, Any]) -> Kept:
    if head.size not in (0, head.elements * ITEMSIZE) or not head.counts:
        raise ProtocolError(
            f"expected a residual of {head.elements} elements, got {head.size} bytes and"
            f" {len(head.counts)} counts"
        )
    data = bytearray(head.payload)
    while len(data) < head.size:
        part = await _next(context)
        next_one = None if part is None else part.residual
        if next_one is None or next_one.identity != head.identity or not next_one.payload:
            raise ProtocolError(f"a residual of {head.size} bytes ends after {len(data)}")
        data += next_one.payload
    if len(data) != head.size:
        raise ProtocolError(f"a residual of {head.size} bytes has {len(data)}")
    values = torch.from_numpy(np.frombuffer(data, dtype=np.float32))
    return Kept(head.identity, tuple(head.counts), values)


async def _next(
    context: grpc.aio.ServicerContext[Any, Any],
) -> pb.WriteResidualsRequest | None:
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            part = await context.read()
    except TimeoutError:
        raise ProtocolError(f"nothing came for {SILENCE_SECONDS:g} s") from None
    return None if part is grpc.aio.EOF else part
