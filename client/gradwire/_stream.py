"""The way for a rank that shares no memory with its daemon: chunks in messages."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gradwire._errors import LostError
from gradwire._pace import Pace
from gradwire._results import Saved, take_chunk
from gradwire_proto.chunks import Cut, cut, overlap
from gradwire_proto.dtypes import DTYPES, sum_itemsize
from gradwire_proto.nonfinite import read
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import tensor_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire._channel import Doorbell, Line
    from gradwire._collective import Collective
    from gradwire._order import Order
    from gradwire._shared_memory import Bytes


@dataclass(slots=True, eq=False)
class _Work:
    """A collective on its way."""

    collective: Collective
    data: Bytes
    cut: Cut
    itemsize: int
    request: pb.ReduceRequest
    sent: int = 0

    def next(self) -> tuple[pb.ReduceRequest, Bytes]:
        """The next chunk's message, and its bytes."""
        chunk, order = self.sent, self.collective.order
        self.sent += 1
        self.request.chunk = chunk
        if chunk:
            # Said once.
            self.request.steps = self.request.communicating_nanoseconds = 0
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


class Streaming:
    """See _carrier.Carrier."""

    path = "stream"
    told_early = False

    def __init__(  # noqa: PLR0913 - what a stream is made of; _seat puts it together
        self,
        line: Line,
        rank: int,
        chunk_bytes: int,
        slots: int,
        beside: Doorbell | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        """`beside`: the daemon's line to a rank whose neighbours share no memory. `resumes`:
        results are kept for others, who may lack them when a daemon is lost.
        """
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
        self._arrived: dict[tuple[int, int], tuple[pb.ReduceResponse, memoryview]] = {}
        """Results; taken in the order of the chunks, so that one number says how far."""
        self._resumes = resumes
        self._saved: OrderedDict[tuple[int, int], Saved] = OrderedDict()
        self._news = threading.Event()
        self._pace = Pace()

    def put(self, collective: Collective) -> None:
        """See Carrier."""
        order = collective.order
        spec = order.described.spec
        data, chunks = order.flat.view(torch.uint8).numpy(), self.cut_of(order)
        itemsize = DTYPES[spec.dtype].itemsize
        request = pb.ReduceRequest(sequence=collective.sequence, spec=spec, weight=order.weight)
        self._pace.hand_in(order, request)
        work = _Work(collective, data, chunks, itemsize, request, collective.taken)
        self._open[collective.sequence] = work
        self._queue.append(work)

    def skip(self, sequence: int) -> None:
        """See Carrier. None is told early."""

    def advance(self) -> Collective | bool:
        """See Carrier."""
        while self._inbox:
            response, payload = self._inbox.popleft()
            self._flying.discard((response.sequence, response.chunk))
            if response.sequence in self._open:
                self._arrived[response.sequence, response.chunk] = response, payload
        if (done := self._take()) is not False:
            return done
        # Those that came before their turn, too: so all that others may lack is among the last.
        if not self._queue or len(self._flying) + len(self._arrived) >= self._slots:
            return False
        work = self._queue[0]
        request, chunk = work.next()
        if work.sent == work.cut.count:
            self._queue.popleft()
        self._flying.add((request.sequence, request.chunk))
        try:
            self._line.send(request, chunk.data)
        except LostError:
            # Who reads the line learns why: the daemon's last words may lie unread.
            return True
        return True

    def _take(self) -> Collective | bool:
        """The oldest result, if it is there."""
        work = next(iter(self._open.values()), None)
        if work is None:
            return False
        collective = work.collective
        key = collective.sequence, collective.taken
        if key not in self._arrived:
            return False
        response, payload = self._arrived.pop(key)
        found = read(response.nonfinite) if response.HasField("nonfinite") else None
        complete = take_chunk(collective, work.cut, payload, found, self._rank)
        self._keep(work, response, payload)
        if not complete:
            return True
        del self._open[response.sequence]
        return collective

    def _keep(self, work: _Work, response: pb.ReduceResponse, payload: memoryview) -> None:
        """Keep a result for others, and let the daemon know that it is safe."""
        if not self._resumes:
            return
        finding = read(response.nonfinite) if response.HasField("nonfinite") else None
        key = response.sequence, response.chunk
        self._saved[key] = Saved(payload, finding, work.cut.count)
        while len(self._saved) > self._slots:
            self._saved.popitem(last=False)
        told = pb.ReduceRequest(
            settled_sequence=response.sequence, settled_chunk=response.chunk + 1
        )
        with contextlib.suppress(LostError):
            self._line.send(told, memoryview(b""))

    def begin_at(self, sequence: int) -> None:
        """See Carrier. The daemon knows."""

    def cut_of(self, order: Order) -> Cut:
        """See Carrier."""
        spec = order.described.spec
        return cut(spec.elements, sum_itemsize(spec.op, spec.dtype), self._chunk_bytes)

    def drain(self) -> Iterator[Collective]:
        """See Carrier."""
        self._queue.clear()
        while (done := self.advance()) is not False:
            if not isinstance(done, bool):
                yield done

    def saved(self) -> dict[tuple[int, int], Saved]:
        """See Carrier."""
        return dict(self._saved)

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
        for key in [key for key in self._arrived if key[0] == sequence]:
            del self._arrived[key]
        self._flying = {chunk for chunk in self._flying if chunk[0] != sequence}

    def resolved(self, collectives: int, size: int) -> None:
        """See Carrier. The daemon knows which have ended."""
        if not self._open:
            self._pace.rest()

    def receive(self) -> pb.ReduceResponse | None:
        """See Carrier."""
        response, payload = self._line.receive()
        if response.HasField("failure") or response.rejoin:
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
