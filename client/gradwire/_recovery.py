"""What becomes of a rank's collectives when its daemon, or another node's, is lost and returns.

Every rank keeps what a daemon forgets: its tensors are unwritten until their results are there,
and recent results lie in the arena, or with the rank. The ranks tell one another, as they join
again, up to which chunk they have results. What some have and others lack is then *replayed*,
in one gather that takes it from the rank that is furthest; everything after that is reduced
again, by the same nodes in the same order, and so with the same bits.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from gradwire._collective import Collective
from gradwire._errors import AggregationError, LostError
from gradwire._failure import error_of
from gradwire._order import gathering
from gradwire._results import Saved, take_chunk
from gradwire._tensor import bytes_of
from gradwire_proto.dtypes import DTYPES
from gradwire_proto.nonfinite import Finding
from gradwire_proto.progress import MOST_LAPSES, Muster, Position, muster, position_of, shift
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gradwire._carrier import Carrier
    from gradwire_proto.chunks import Cut

_HEAD = struct.Struct("<?xxxxxxxqq")
"""Of a chunk that is replayed: whether it is not finite, the rank and the element of that."""

_ALIGNMENT = 64


class Return(Protocol):
    """The way back to a rank's place at a daemon, whichever process that is."""

    @property
    def attempt(self) -> int:
        """How often the generation was taken up again."""
        ...

    def rejoin(
        self, attempt: int, progress: pb.Progress, lost: LostError
    ) -> tuple[Carrier, list[pb.Progress]]:
        """Take the seat again, at this attempt or a later one: how tensors travel now, and how
        far all ranks are. Raises LostError, with what was lost, where that takes too long.
        """
        ...


class _Missing(NamedTuple):
    """A chunk that some ranks have and others lack."""

    position: Position
    offset: int
    """In what is replayed."""
    size: int


class _Nothing:
    """See _carrier.Outcome: the replay has no future."""

    def done(self) -> bool:
        """See Outcome."""
        return False

    def settle(self, outcome: Callable[[], torch.Tensor] | Exception) -> None:
        """See Outcome."""


class Recovery:
    """One pipeline's. Not thread-safe: its methods are called by whoever works for it."""

    def __init__(
        self, seat: Return, rank: int, interrupted: Callable[[LostError], None] | None = None
    ) -> None:
        """`interrupted` is called before the seat is taken again."""
        self._seat = seat
        self._rank = rank
        self._interrupted = interrupted
        self._saved: dict[tuple[int, int], Saved] = {}
        """By number of the collective and chunk."""
        self._lapses: OrderedDict[int, pb.Failure] = OrderedDict()
        """By number."""
        self._muster = Muster(Position(0, 0), Position(0, 0), 0, {})
        self._own = Position(0, 0)

    @property
    def attempt(self) -> int:
        """How often the generation was taken up again."""
        return self._seat.attempt

    @property
    def _shift(self) -> int:
        return shift(self._seat.attempt)

    def note(self, sequence: int, failure: pb.Failure) -> None:
        """A collective has failed."""
        self._lapses[sequence - self._shift] = failure
        while len(self._lapses) > MOST_LAPSES:
            self._lapses.popitem(last=False)

    def keep(self, carrier: Carrier) -> None:
        """Keep the results that the carrier has: it is about to go.

        Those of a replay, too, under a number that nobody asks for any more.
        """
        for (sequence, chunk), saved in carrier.saved().items():
            self._saved[sequence - self._shift, chunk] = saved

    def rejoin(
        self, attempt: int, first: int, collective: Collective | None, lost: LostError
    ) -> Carrier:
        """Take the seat again. `first`: number of the first collective without a result here.

        Raises LostError where that takes too long.
        """
        if self._interrupted is not None:
            self._interrupted(lost)
        taken = 0 if collective is None else collective.taken
        lapses = [pb.Lapse(sequence=each, failure=why) for each, why in self._lapses.items()]
        progress = pb.Progress(sequence=first, chunk=taken, lapses=lapses)
        carrier, everybody = self._seat.rejoin(attempt, progress, lost)
        self._muster = muster(everybody)
        self._lapses |= self._muster.lapses
        self._saved = {at: each for at, each in self._saved.items() if at >= self._muster.low}
        self._own = position_of(first, taken, self._muster.lapses)
        return carrier

    def begin(self, carrier: Carrier, open_: Mapping[int, Collective]) -> Collective:
        """The collective with which the attempt begins: what some have and others lack."""
        missing = list(self._missing(carrier, open_))
        size = missing[-1].offset + _HEAD.size + missing[-1].size if missing else 0
        buffer = torch.zeros(size, dtype=torch.uint8)
        providing = self._rank == self._muster.provider
        for each in missing if providing else ():
            self._write(buffer, each)
        order = gathering(buffer, (0, size) if providing else (0, 0))
        replay = Collective(self._muster.low.collective, order, _Nothing())
        carrier.begin_at(replay.sequence)
        carrier.put(replay)
        return replay

    def apply(
        self, replay: Collective, carrier: Carrier, open_: Mapping[int, Collective]
    ) -> list[Collective]:
        """Take what this rank lacks; the collectives that this completes."""
        buffer = bytes_of(replay.order.flat)
        complete = []
        for each in self._missing(carrier, open_):
            if each.position < self._own:
                continue
            collective = open_[each.position.collective + 1]
            cut = carrier.cut_of(collective.order)
            bad, rank, element = _HEAD.unpack_from(buffer, each.offset)
            payload = buffer[each.offset + _HEAD.size :][: each.size]
            found = Finding(rank, element) if bad else None
            # Whoever loses this attempt, too, may lack it still.
            self._saved[each.position] = Saved(payload, found, cut.count)
            if take_chunk(collective, cut, payload, found, self._rank):
                complete.append(collective)
        return complete

    def failed(self) -> dict[int, AggregationError]:
        """Collectives of which another rank knows that they failed, by sequence."""
        return {each + 1: error_of(why) for each, why in self._muster.lapses.items()}

    def _write(self, buffer: torch.Tensor, missing: _Missing) -> None:
        saved = self._saved[missing.position]
        target = bytes_of(buffer)
        if (found := saved.finding) is not None:
            _HEAD.pack_into(target, missing.offset, True, found.rank, found.element)
        target[missing.offset + _HEAD.size :][: missing.size] = saved.payload

    def _missing(self, carrier: Carrier, open_: Mapping[int, Collective]) -> Iterator[_Missing]:
        position, offset, lapses = self._muster.low, 0, self._muster.lapses
        while position < self._muster.high:
            number, chunk = position
            chunks, size = self._chunk(carrier, open_, position)
            yield _Missing(position, offset, size)
            offset += -(-(_HEAD.size + size) // _ALIGNMENT) * _ALIGNMENT
            if chunk + 1 < chunks:
                position = Position(number, chunk + 1)
            else:
                position = position_of(number + 1, 0, lapses)

    def _chunk(
        self, carrier: Carrier, open_: Mapping[int, Collective], position: Position
    ) -> tuple[int, int]:
        """Chunks of a collective, and bytes of one of them."""
        saved = self._saved.get(position)
        if position < self._own and saved is not None:
            return saved.chunks, len(saved.payload)
        collective = open_.get(position.collective + 1)
        if collective is None or position < self._own:
            raise LostError(
                f"the job can't be taken up again: the result of chunk {position.chunk} of"
                f" collective {position.collective} is gone on rank {self._rank}"
            )
        cut: Cut = carrier.cut_of(collective.order)
        start, stop = cut.range(position.chunk)
        itemsize = DTYPES[collective.order.described.spec.dtype].itemsize
        return cut.count, (stop - start) * itemsize
