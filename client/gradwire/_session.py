"""One rank's seat in a job: takes tensors, cuts them into chunks, resolves their futures.

Two threads besides the caller's: the *mover* copies the chunks of large tensors into free
slots; the *listener* waits for results, copies them out and resolves futures.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from gradwire._errors import AggregationError, LostError, MismatchError, RoundTimeoutError
from gradwire._result import Result
from gradwire._tensor import Shape, as_bytes, describe
from gradwire_proto.chunks import chunk_count, chunk_range
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import torch

    from gradwire._channel import Line
    from gradwire._shared_memory import Arena, Bytes

SILENCE_GRACE_SECONDS = 5.0
"""The daemon itself says who is late; one that is silent for so much longer is stuck."""

STUCK_SECONDS = 0.5
"""A listener that resolves one future for so long is replaced; looked at once a second."""

_ERRORS: dict[pb.Failure.Kind, type[AggregationError]] = {
    pb.Failure.KIND_MISMATCH: MismatchError,
    pb.Failure.KIND_TIMEOUT: RoundTimeoutError,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session sits, and what was agreed there."""

    rank: int
    world_size: int
    node: int
    nodes: int
    generation: str
    daemon: str
    chunk_bytes: int
    slots: int
    timeout: float


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session has done since it connected."""

    rounds: int
    """Collectives that have ended."""
    bytes_in: int
    """Bytes of the tensors handed in."""
    seconds_waiting: float
    """Sum over the collectives of the time from submission to result; they may overlap."""


@dataclass(slots=True, eq=False)
class _Collective:
    """One tensor on its way."""

    sequence: int
    data: Bytes
    finish: Callable[[], torch.Tensor]
    request: pb.ReduceRequest
    chunks: int
    future: Result = field(default_factory=Result)
    since: float = field(default_factory=time.monotonic)
    sent: int = 0
    received: int = 0


class Session:
    """A rank's seat in a job; gradwire.connect makes it. Methods may be called from any thread.

    Every rank of the job must submit the same collectives in the same order. A context manager;
    also closed when the process ends.
    """

    def __init__(
        self, place: Place, line: Line, arena: Arena | None, leave: Callable[[], None]
    ) -> None:
        self._place = place
        self._line = line
        self._arena = arena
        self._leave = leave
        self._work = threading.Condition()
        self._queue: deque[_Collective] = deque()
        self._open: dict[int, _Collective] = {}
        self._slots: list[tuple[int, int] | None] = [None] * place.slots
        self._turn = 0
        self._next_sequence = 0
        self._pumping = False
        self._over: AggregationError | None = None
        self._process = os.getpid()
        self._heard = time.monotonic()
        self._stats = SessionStats(0, 0, 0.0)
        self._resolving_since: float | None = None
        threading.Thread(target=self._move, name="gradwire-mover", daemon=True).start()
        self._start_listener()

    # -- what a training script calls

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """Ranks in the job."""
        return self._place.world_size

    @property
    def node(self) -> int:
        """Index of this rank's node."""
        return self._place.node

    @property
    def nodes(self) -> int:
        """Nodes in the job."""
        return self._place.nodes

    @property
    def generation(self) -> str:
        """Random name of this life of the job."""
        return self._place.generation

    @property
    def daemon(self) -> str:
        """Address of this node's daemon."""
        return self._place.daemon

    @property
    def path(self) -> str:
        """How tensors reach the daemon: "shared_memory" or "stream"."""
        return self._line.path

    @property
    def stats(self) -> SessionStats:
        """Counts since the session began."""
        return self._stats

    def all_reduce(
        self, tensor: torch.Tensor, op: str = "mean", weight: float | None = None
    ) -> torch.futures.Future[torch.Tensor]:
        """Reduce a tensor over all ranks, in place; returns at once.

        The future holds the tensor itself, with the same bits on every rank. Until then the
        tensor must not be touched. Any shape, contiguous or not; fp16, bf16, fp32, fp64,
        complex, and integers of 8 to 64 bits. `op` is mean, sum, min, max or product; `weight`
        is this rank's share in a mean. 16-bit floats are summed in fp32; a mean of integers is
        truncated.

        Raises TypeError or ValueError for what can't be reduced, and LostError where the
        session is over. The future raises MismatchError or RoundTimeoutError, after which the
        session goes on, or LostError, after which it does not.
        """
        return self.submit(tensor, [tuple(tensor.shape)], op, 1.0 if weight is None else weight)

    def submit(
        self,
        tensor: torch.Tensor,
        shapes: Sequence[Shape],
        op: str = "mean",
        weight: float = 1.0,
    ) -> torch.futures.Future[torch.Tensor]:
        """all_reduce for a flat tensor that holds parameters of these shapes."""
        if os.getpid() != self._process:
            raise LostError(
                "this session belongs to the process that connected, not to one forked from it;"
                " connect in each process"
            )
        spec = describe(tensor, shapes, op, weight)
        data, finish = as_bytes(tensor)
        chunks = chunk_count(data.nbytes, self._place.chunk_bytes)
        with self._work:
            if self._over is not None:
                raise type(self._over)(str(self._over))
            request = pb.ReduceRequest(sequence=self._next_sequence, spec=spec, weight=weight)
            collective = _Collective(self._next_sequence, data, finish, request, chunks)
            self._next_sequence += 1
            if not self._open:
                self._heard = time.monotonic()
            self._open[collective.sequence] = collective
            self._queue.append(collective)
            mine = chunks == 1 and len(self._queue) == 1
            if not mine:
                self._work.notify()
        if mine:
            # One small copy is cheaper here than waking the mover for it.
            self._pump()
        return collective.future

    def close(self) -> None:
        """Leave the job; collectives without a result fail on this rank. May be repeated."""
        if os.getpid() == self._process:
            self._end(LostError("this session was closed"), leaving=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self._over is None else "over"
        return f"<gradwire.Session rank {self.rank} of {self.world_size}, {state}>"

    # -- chunks in

    def _move(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._over is not None or self._can_send(), 1.0)
                if self._over is not None:
                    return
            self._pump()
            self._check_silence()
            self._check_listener()

    def _can_send(self) -> bool:
        return not self._pumping and bool(self._queue) and self._slots[self._turn] is None

    def _pump(self) -> None:
        """Send chunks, in order, while there are slots; one thread at a time."""
        with self._work:
            if self._pumping:
                return
            self._pumping = True
        while (chunk := self._take_chunk()) is not None:
            try:
                self._send(*chunk)
            except LostError as error:
                self._end(error)

    def _take_chunk(self) -> tuple[_Collective, int, int] | None:
        with self._work:
            if self._over is not None or not self._queue or self._slots[self._turn] is not None:
                self._pumping = False
                return None
            collective, slot = self._queue[0], self._turn
            chunk = collective.sent
            collective.sent += 1
            if collective.sent == collective.chunks:
                self._queue.popleft()
            self._slots[slot] = (collective.sequence, chunk)
            self._turn = (slot + 1) % len(self._slots)
            return collective, chunk, slot

    def _send(self, collective: _Collective, chunk: int, slot: int) -> None:
        part = self._part(collective, chunk)
        request = collective.request
        request.chunk, request.slot = chunk, slot
        if self._arena is None:
            self._line.send(request, part.data)
            return
        np.copyto(self._arena.slot(slot, part.nbytes), part)
        self._line.send(request, None)

    def _part(self, collective: _Collective, chunk: int) -> Bytes:
        start, stop = chunk_range(chunk, collective.data.nbytes, self._place.chunk_bytes)
        return collective.data[start:stop]

    # -- results out

    def _start_listener(self) -> None:
        self._resolving_since = None
        self._listener = threading.Thread(
            target=self._listen, name="gradwire-listener", daemon=True
        )
        self._listener.start()

    def _check_listener(self) -> None:
        """Replace a listener that hangs in what somebody chained to a future.

        Result keeps such callbacks off this thread, but can't see those that C++ code chains, as
        torch.futures.collect_all does. The callback may wait for a result that is yet to come.
        """
        since = self._resolving_since
        if since is not None and time.monotonic() - since > STUCK_SECONDS:
            self._start_listener()

    def _listen(self) -> None:
        while self._listener is threading.current_thread():
            try:
                response, payload = self._line.receive()
                self._heard = time.monotonic()
                if response.HasField("failure"):
                    self._failed(response)
                else:
                    self._received(response, payload)
            except LostError as error:
                self._end(error)
                return
            except Exception as error:  # noqa: BLE001 - a dead listener would leave all to hang
                self._end(LostError(f"this client made a mistake of its own: {error!r}"))
                return

    def _received(self, response: pb.ReduceResponse, payload: memoryview) -> None:
        collective = self._open.get(response.sequence)
        if collective is None:
            return
        part = self._part(collective, response.chunk)
        if self._arena is not None:
            np.copyto(part, self._arena.result(response.slot, part.nbytes))
        elif payload.nbytes:
            np.copyto(part, np.frombuffer(payload, dtype=np.uint8))
        with self._work:
            self._slots[self._slots.index((response.sequence, response.chunk))] = None
            collective.received += 1
            complete = collective.received == collective.chunks
            if self._can_send():
                self._work.notify()
        if complete:
            self._resolve(collective, None)

    def _failed(self, response: pb.ReduceResponse) -> None:
        failure = response.failure
        if failure.scope == pb.Failure.SCOPE_JOB:
            raise LostError(failure.reason)
        with self._work:
            collective = self._open.get(response.sequence)
            if collective is None:
                return
            if collective in self._queue:
                self._queue.remove(collective)
            for slot, chunk in enumerate(self._slots):
                if chunk is not None and chunk[0] == response.sequence:
                    self._slots[slot] = None
            self._work.notify()
        error = _ERRORS.get(failure.kind, AggregationError)(failure.reason)
        self._resolve(collective, error)

    def _resolve(self, collective: _Collective, error: AggregationError | None) -> None:
        with self._work:
            if self._open.pop(collective.sequence, None) is None:
                return
            stats = self._stats
            self._stats = SessionStats(
                stats.rounds + 1,
                stats.bytes_in + collective.data.nbytes,
                stats.seconds_waiting + time.monotonic() - collective.since,
            )
        listening = self._listener is threading.current_thread()
        if listening:
            self._resolving_since = time.monotonic()
        collective.future.settle(collective.finish if error is None else error)
        if listening and self._listener is threading.current_thread():
            self._resolving_since = None

    # -- the end

    def _check_silence(self) -> None:
        silent = time.monotonic() - self._heard
        if self._open and silent > self._place.timeout + SILENCE_GRACE_SECONDS:
            self._end(
                LostError(
                    f"the daemon at {self.daemon} has been silent for {silent:.0f} s, though"
                    f" {len(self._open)} collectives wait for it; it is stopped or stuck"
                )
            )

    def _end(self, error: AggregationError, *, leaving: bool = False) -> None:
        with self._work:
            if self._over is not None:
                return
            self._over = error
            waiting = list(self._open.values())
            self._queue.clear()
            self._work.notify_all()
        if leaving:
            self._leave()
        self._line.close()
        if self._arena is not None:
            self._arena.close(orphaned=not leaving)
        for collective in waiting:
            text = (
                f"{error}; collective {collective.sequence} of rank {self.rank} has no result"
            )
            self._resolve(collective, type(error)(text))
