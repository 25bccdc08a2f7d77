"""Traces for whoever asks over gRPC, and into a file of the daemon's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING, Any

from gradwire_proto.trace_json import to_json
from gradwire_server.errors import ProtocolError, StartError
from gradwire_server.tracing import traced_jobs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import grpc

    from gradwire_proto.v1 import aggregator_pb2 as pb
    from gradwire_server.jobs import Jobs
    from gradwire_server.tracing import Listener, Recorder

    Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

MOST_SECONDS = 3600.0

LOOK_SECONDS = 0.2
"""Between two looks at what has been recorded."""

FILE_SPANS = 1 << 17
"""The latest so many are written to a file."""

FILE_LOOK_SECONDS = 1.0


class Traces:
    """Serves traces."""

    def __init__(self, recorder: Recorder, jobs: Jobs, node_id: str) -> None:
        self._recorder = recorder
        self._jobs = jobs
        self._node_id = node_id

    async def trace(self, request: pb.TraceRequest, context: Context) -> None:
        """Tell what is recorded from now on, until the time is over or the caller leaves."""
        if not 0 < request.seconds <= MOST_SECONDS:
            raise ProtocolError(
                f"expected a trace of up to {MOST_SECONDS:g} s, got {request.seconds:g}"
            )
        loop = asyncio.get_running_loop()
        end = loop.time() + request.seconds
        with self._recorder.listening() as listener:
            for job in self._jobs.all:
                job.engine.draw()
            await context.write(self._part(listener, named=True))
            while (left := end - loop.time()) > 0:
                await asyncio.sleep(min(LOOK_SECONDS, left))
                # It may come faster than it can be written.
                more = True
                while more and loop.time() < end:
                    more = await self._tell(listener, context)
        # What had come by then.
        while await self._tell(listener, context):
            pass
        await context.write(self._part(listener, named=True))

    async def _tell(self, listener: Listener, context: Context) -> bool:
        """A part of what has come; whether there was any."""
        part = self._part(listener)
        if not (part.spans or part.deeds):
            return False
        await context.write(part)
        return True

    def _part(self, listener: Listener, *, named: bool = False) -> pb.TraceResponse:
        listener.meet(traced_jobs(self._jobs))
        part = listener.take()
        if named:
            part.source.CopyFrom(listener.source(self._node_id))
        return part

    @contextlib.asynccontextmanager
    async def kept(self, path: Path) -> AsyncIterator[None]:
        """While the block runs, everything is recorded; then the latest of it is written.

        Raises StartError where it could not be.
        """
        path = _checked(path)
        with self._recorder.listening(FILE_SPANS) as listener:
            looking = asyncio.create_task(self._look(listener))
            try:
                yield
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
                await asyncio.to_thread(_write, path, self._all(listener))

    async def _look(self, listener: Listener) -> None:
        while True:
            listener.meet(traced_jobs(self._jobs))
            await asyncio.sleep(FILE_LOOK_SECONDS)

    def _all(self, listener: Listener) -> list[pb.TraceResponse]:
        parts = [self._part(listener, named=True)]
        while parts[-1].spans or parts[-1].deeds:
            parts.append(self._part(listener))
        return parts


def _checked(path: Path) -> Path:
    """Where that leads to. Raises StartError where there will be no file."""
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            # It would be replaced: a device would be one no more.
            raise StartError(f"can't write a trace to {path}: no regular file; choose another")
        part = _part_of(path)
        part.touch()
        part.unlink()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(
            f"can't write a trace to {path}: {reason}; choose another --trace"
        ) from error
    return path


def _part_of(path: Path) -> Path:
    # Whoever reads it meanwhile, or writes there, too, sees all of one or of the other. Not
    # just with a number behind: so are workers' traces called, and a container's daemon is 1.
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _write(path: Path, parts: list[pb.TraceResponse]) -> None:
    part = _part_of(path)
    try:
        part.write_text(json.dumps(to_json([parts])))
        part.replace(path)
    except OSError as error:
        log.error("no trace in %s: %s", path, error.strerror)
