"""Carries tensors to the daemon and back, chunk by chunk, through this rank's slots.

Two threads besides the caller's: the *mover* copies the chunks of large tensors into free
slots; the *listener* hears results, copies them out and resolves futures. Where the caller can
do either by itself, it does: that spares waking a thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gradwire._errors import AggregationError, LostError, MismatchError, RoundTimeoutError
from gradwire._result import Result
from gradwire_proto.chunks import chunk_count, chunk_range
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gradwire._channel import Line
    from gradwire._shared_memory import Arena, Bytes
    from gradwire_proto.v1 import tensor_pb2

SILENCE_GRACE_SECONDS = 5.0
"""The daemon itself says who is late; one that is silent for so much longer is stuck."""

RECENT_SECONDS = 1.0
RECENT_LOOK_SECONDS = 0.005
LOOK_SECONDS = 0.05
"""How often the listener looks whether somebody waits unheard: often after recent work."""

_ERRORS: dict[pb.Failure.Kind, type[AggregationError]] = {
    pb.Failure.KIND_MISMATCH: MismatchError,
    pb.Failure.KIND_TIMEOUT: RoundTimeoutError,
}


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session has done since it connected."""

    rounds: int
    """Collectives that have ended."""
    bytes_in: int
    """Bytes of the tensors handed in."""
    seconds_waiting: float
    """Sum over the collectives of the time from submission to result; they may overlap."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the daemon gave this rank."""

    chunk_bytes: int
    slots: int
    timeout: float


@dataclass(slots=True, eq=False)
class _Collective:
    """One tensor on its way."""

    sequence: int
    data: Bytes
    finish: Callable[[], torch.Tensor]
    request: pb.ReduceRequest
    chunks: int
    future: Result
    since: float = field(default_factory=time.monotonic)
    sent: int = 0
    received: int = 0


class Pipeline:
    """One rank's collectives. All methods may be called from any thread."""

    def __init__(self, line: Line, arena: Arena | None, terms: Terms) -> None:
        self.stats: SessionStats = SessionStats(0, 0, 0.0)
        self.over: AggregationError | None = None
        self._process = os.getpid()
        self._line = line
        self._arena = arena
        self._terms = terms
        self._work = threading.Condition()
        self._queue: deque[_Collective] = deque()
        self._open: dict[int, _Collective] = {}
        self._slots: list[tuple[int, int] | None] = [None] * terms.slots
        self._turn = 0
        self._next_sequence = 0
        self._pumping = False
        self._heard = time.monotonic()
        # Held by who hears. Re-entered where what is chained to a future, run by the thread
        # that heard its result, waits for a result itself.
        self._ear = threading.RLock()
        self._called = threading.Event()
        for name, work in (("mover", self._move), ("listener", self._listen)):
            threading.Thread(target=work, name=f"gradwire-{name}", daemon=True).start()

    def submit(
        self,
        data: Bytes,
        finish: Callable[[], torch.Tensor],
        spec: tensor_pb2.Spec,
        weight: float,
    ) -> Result:
        """Send a tensor's bytes on their way; finish gives the result once they are back.

        Raises LostError where the pipeline is over.
        """
        chunks = chunk_count(data.nbytes, self._terms.chunk_bytes)
        future = Result(self._hear_until)
        with self._work:
            if self.over is not None:
                raise type(self.over)(str(self.over))
            request = pb.ReduceRequest(sequence=self._next_sequence, spec=spec, weight=weight)
            collective = _Collective(self._next_sequence, data, finish, request, chunks, future)
            self._next_sequence += 1
            if not self._open:
                self._heard = time.monotonic()
            self._open[collective.sequence] = collective
            self._queue.append(collective)
            mine = chunks == 1 and len(self._queue) == 1
            if not mine:
                self._work.notify()
        if mine:
            self._pump()
        return future

    def check_process(self) -> None:
        """Raise LostError in a process forked from the one that connected."""
        if os.getpid() != self._process:
            raise LostError(
                "this session belongs to the process that connected, not to one forked from it;"
                " connect in each process"
            )

    def call_listener(self) -> None:
        """Somebody waits who does not hear by itself."""
        self._called.set()

    def end(self, error: AggregationError, leave: Callable[[], None] | None = None) -> None:
        """Fail what has no result, once; leave, if given, says goodbye to the daemon.

        Does nothing in a forked child, whose parent goes on.
        """
        if os.getpid() != self._process:
            return
        with self._work:
            if self.over is not None:
                return
            self.over = error
            waiting = list(self._open.values())
            self._queue.clear()
            self._work.notify_all()
        self._called.set()
        if leave is not None:
            leave()
        self._line.close()
        if self._arena is not None:
            self._arena.close(orphaned=leave is None)
        for collective in waiting:
            text = f"{error}; collective {collective.sequence} has no result here"
            self._resolve(collective, type(error)(text))

    # -- chunks in

    def _move(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self.over is not None or self._can_send(), 1.0)
                if self.over is not None:
                    return
            self._pump()
            self._check_silence()

    def _can_send(self) -> bool:
        return not self._pumping and bool(self._queue) and self._slots[self._turn] is None

    def _pump(self) -> None:
        """Send chunks, in order, while there are slots; one thread at a time."""
        with self._work:
            if self._pumping:
                return
            self._pumping = True
        try:
            while (chunk := self._take_chunk()) is not None:
                try:
                    self._send(*chunk)
                except LostError:
                    # Who hears learns why: the daemon's last words may lie unread.
                    self._called.set()
        except BaseException as error:
            self.end(LostError(f"sending a tensor was interrupted by {error!r}"))
            raise

    def _take_chunk(self) -> tuple[_Collective, int, int] | None:
        with self._work:
            if self.over is not None or not self._queue or self._slots[self._turn] is not None:
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
        start, stop = chunk_range(chunk, collective.data.nbytes, self._terms.chunk_bytes)
        return collective.data[start:stop]

    # -- results out

    def _listen(self) -> None:
        """Hear what comes while nobody else does.

        Who waits for a Result hears by itself: that spares waking this thread, and then the
        waiting one. This thread is called where C++ code waits, and looks now and then.
        """
        while self.over is None:
            if self._open and self._ear.acquire(blocking=False):
                try:
                    while self._open and self.over is None:
                        self._hear()
                finally:
                    self._ear.release()
            recent = time.monotonic() - self._heard < RECENT_SECONDS
            self._called.wait(RECENT_LOOK_SECONDS if recent else LOOK_SECONDS)
            self._called.clear()

    def _hear_until(self, future: Result) -> None:
        """Hear what comes until this future has its result, unless somebody hears already."""
        self.check_process()
        while not future.done() and self._ear.acquire(blocking=False):
            try:
                if not future.done():
                    self._hear()
            finally:
                self._ear.release()

    def _hear(self) -> None:
        self._line.await_response()
        try:
            response, payload = self._line.receive()
            self._heard = time.monotonic()
            if response.HasField("failure"):
                self._failed(response)
            else:
                self._received(response, payload)
        except LostError as error:
            self.end(error)
        except BaseException as error:
            # A signal's, or a mistake of ours. A response may be half taken: nobody must wait
            # for the other half.
            self.end(LostError(f"taking a result was interrupted by {error!r}"))
            raise

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
            stats = self.stats
            self.stats = SessionStats(
                stats.rounds + 1,
                stats.bytes_in + collective.data.nbytes,
                stats.seconds_waiting + time.monotonic() - collective.since,
            )
        collective.future.settle(collective.finish if error is None else error)

    def _check_silence(self) -> None:
        silent = time.monotonic() - self._heard
        if self._open and silent > self._terms.timeout + SILENCE_GRACE_SECONDS:
            self.end(
                LostError(
                    f"{self._line.daemon} has been silent for {silent:.0f} s, though"
                    f" {len(self._open)} collectives wait for it; it is stopped or stuck"
                )
            )
