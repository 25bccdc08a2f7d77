"""The way for a rank that shares no memory with its daemon: chunks in messages."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gradwire._errors import LostError
from gradwire_proto.chunks import Cut, cut, overlap
from gradwire_proto.dtypes import DTYPES, sum_itemsize
from gradwire_proto.nonfinite import read
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import tensor_pb2

if TYPE_CHECKING:
    from gradwire._channel import Doorbell, Line
    from gradwire._collective import Collective
    from gradwire._shared_memory import Bytes


@dataclass(slots=True, eq=False)
class _Work:
    """A collective on its way."""

    collective: Collective
    data: Bytes
    target: Bytes
    first: int
    """Where what is taken goes, and which byte of the result lies at its start."""
    cut: Cut
    itemsize: int
    request: pb.ReduceRequest
    sent: int = 0
    received: int = 0

    def next(self) -> tuple[pb.ReduceRequest, Bytes]:
        """The next chunk's message, and its bytes."""
        chunk, order = self.sent, self.collective.order
        self.sent += 1
        self.request.chunk = chunk
        start, stop = self.cut.range(chunk)
        if order.described.spec.op != tensor_pb2.OP_GATHER:
            return self.request, self.data[start * self.itemsize : stop * self.itemsize]
        first, end = overlap((start, stop), order.brings)
        self.request.weight = float(end - first)
        if end - first in (0, stop - start):
            return self.request, self.data[first:end]
        padded = np.zeros(stop - start, dtype=np.uint8)
        padded[first - start : end - start] = self.data[first:end]
        return self.request, padded

    def take(self, chunk: int, payload: memoryview) -> None:
        """Write what this rank takes of a chunk's result."""
        extent, size = self.cut.range(chunk), self.itemsize
        result = np.frombuffer(payload, dtype=np.uint8)
        for part in self.collective.order.takes:
            first, end = overlap(extent, part)
            if first < end:
                place = slice(first * size - self.first, end * size - self.first)
                at, until = (first - extent[0]) * size, (end - extent[0]) * size
                self.target[place] = result[at:until]


class Streaming:
    """See _pipeline.Carrier."""

    path = "stream"
    told_early = False

    def __init__(
        self,
        line: Line,
        rank: int,
        chunk_bytes: int,
        slots: int,
        beside: Doorbell | None = None,
    ) -> None:
        """`beside`: the daemon's line to a rank whose neighbours share no memory."""
        self.daemon = line.daemon
        self._line = line
        self._rank = rank
        self._chunk_bytes = chunk_bytes
        self._slots = slots
        self._beside = beside
        self._queue: deque[_Work] = deque()
        self._open: dict[int, _Work] = {}
        self._flying: set[tuple[int, int]] = set()
        self._inbox: deque[tuple[pb.ReduceResponse, memoryview]] = deque()
        self._news = threading.Event()

    def put(self, collective: Collective) -> None:
        """See Carrier."""
        order = collective.order
        spec = order.described.spec
        row, first = order.target
        data, target = (each.view(torch.uint8).numpy() for each in (order.flat, row))
        itemsize = DTYPES[spec.dtype].itemsize
        chunks = cut(spec.elements, sum_itemsize(spec.op, spec.dtype), self._chunk_bytes)
        request = pb.ReduceRequest(sequence=collective.sequence, spec=spec, weight=order.weight)
        work = _Work(collective, data, target, first * itemsize, chunks, itemsize, request)
        self._open[collective.sequence] = work
        self._queue.append(work)

    def skip(self, sequence: int) -> None:
        """See Carrier. None is told early."""

    def advance(self) -> Collective | bool:
        """See Carrier."""
        if self._inbox:
            return self._take(*self._inbox.popleft())
        if not self._queue or len(self._flying) >= self._slots:
            return False
        work = self._queue[0]
        request, payload = work.next()
        if work.sent == work.cut.count:
            self._queue.popleft()
        self._flying.add((request.sequence, request.chunk))
        try:
            self._line.send(request, payload.data)
        except LostError:
            # Who reads the line learns why: the daemon's last words may lie unread.
            return True
        return True

    def _take(self, response: pb.ReduceResponse, payload: memoryview) -> Collective | bool:
        self._flying.discard((response.sequence, response.chunk))
        work = self._open.get(response.sequence)
        if work is None:
            return True
        if response.HasField("nonfinite"):
            start, stop = work.cut.range(response.chunk)
            work.collective.hear(read(response.nonfinite), start, stop, self._rank)
        if payload.nbytes:
            work.take(response.chunk, payload)
        work.received += 1
        if work.received < work.cut.count:
            return True
        del self._open[response.sequence]
        return work.collective

    def wait(self, seconds: float) -> None:
        """See Carrier."""
        self._news.wait(seconds)
        self._news.clear()

    def wake(self) -> None:
        """See Carrier."""
        self._news.set()

    def drop(self, sequence: int) -> None:
        """See Carrier."""
        work = self._open.pop(sequence, None)
        if work is not None and work in self._queue:
            self._queue.remove(work)
        self._flying = {chunk for chunk in self._flying if chunk[0] != sequence}

    def resolved(self, collectives: int, size: int) -> None:
        """See Carrier. The daemon knows."""

    def receive(self) -> pb.ReduceResponse | None:
        """See Carrier."""
        response, payload = self._line.receive()
        if response.HasField("failure"):
            return response
        self._inbox.append((response, payload))
        return None

    def hang_up(self) -> None:
        """See Carrier."""
        self._line.close()
        if self._beside is not None:
            self._beside.close()

    def close(self, *, orphaned: bool) -> None:
        """See Carrier."""
        self._queue.clear()
        self._open.clear()
