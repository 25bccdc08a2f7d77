"""A chunk's sum where a lossy wire carries it.

What crosses the wire is encoded once, in the memory of the message; what others will read of
it, this node reads, too, so that all have the same bits. What is lost is added the next time
(feedback.py).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import torch

from gradwire_proto.nonfinite import first_nonfinite
from gradwire_server.codecs import codec_of, encoded_size, segments
from gradwire_server.errors import ProtocolError
from gradwire_server.kernels import ChunkSum, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradwire_proto.nonfinite import Finding
    from gradwire_server.feedback import Loan
    from gradwire_server.kernels import Partial
    from gradwire_server.local import Place
    from gradwire_server.meters import CodecMeter
    from gradwire_server.round import Coding, Key, Spec

_MASK = (1 << 64) - 1
_HEAD = struct.Struct("<d")


class CodedSum(ChunkSum):
    """See ChunkSum.

    `hands_out`: results cross the wire, too; else every node adds up the whole for itself.
    `ranks`: of this node.

    What is fed back is kept in units of this node's mean weight, so that it comes back as much
    as it was, whatever the weights are now: the sum is divided by that before it is encoded,
    and multiplied again by who decodes it. The number stands before the code.
    """

    def __init__(  # noqa: PLR0913 - what ChunkSum is made of, and three of its own
        self,
        spec: Spec,
        coding: Coding,
        place: Place,
        elements: int,
        shares: Sequence[tuple[int, int]],
        world_size: int,
        *,
        hands_out: bool,
        seed: int,
        loan: Loan | None,
        ranks: int = 1,
        meter: CodecMeter | None = None,
    ) -> None:
        super().__init__(spec, place, elements, shares, world_size)
        self._codec = codec_of(coding.wire, coding.ratio, stochastic=coding.stochastic)
        self._hands_out = hands_out
        self._seed = seed
        self._memory = None if loan is None else loan.memory
        self._ranks = ranks
        self._meter = meter
        self._head_bytes = _HEAD.size if coding.feedback else 0
        self._unread: dict[int, Sequence[memoryview]] = {}
        """The last that arrived of a share."""
        self._encoded: dict[int, memoryview] = {}
        """Of each share what this node sends: its part of the sum, or the result."""

    # -- what is sent

    def is_ready(self, share: int) -> bool:
        """See ChunkSum."""
        return share in self._encoded

    def encode(self, share: int) -> None:
        """Write a share as it crosses the wire. It becomes what the others will read."""
        mean = self._arithmetic.mean and self._head_bytes
        unit = self.weights[share] / self._ranks if mean else 1.0
        self._encoded[share] = self._write(share, unit, reread=not self._hands_out)

    def partial(self, share: int) -> memoryview:
        """See ChunkSum; encoded."""
        return self._encoded[share]

    final = partial

    def arriving_bytes(self, share: int, weight: float) -> int:
        """See ChunkSum."""
        return self._head_bytes + self.final_bytes(share)

    def final_bytes(self, share: int) -> int:
        """See ChunkSum; encoded."""
        start, stop = self._shares[share]
        return encoded_size(self._codec, stop - start)

    def raw_bytes(self, share: int, size: int) -> int:
        """See ChunkSum."""
        return self.partial_bytes(share) if size else 0

    def _write(self, share: int, unit: float | None, *, reread: bool) -> memoryview:
        """Encode a share's sum; with `reread`, it is then what the code says.

        `unit` stands before it; None for what has none, a result.
        """
        start, stop = self._shares[share]
        values = self._sum[start:stop]
        at = 0 if unit is None else self._head_bytes
        data = torch.empty(at + encoded_size(self._codec, values.numel()), dtype=torch.uint8)
        if self._meter is not None and self._meter.encoded(values, data.numel()):
            self._meter.sample(self._codec, values, mix(self._seed, start))
        if at:
            data[:at] = torch.frombuffer(_HEAD.pack(unit), dtype=torch.uint8)
        owing = torch.empty(min(self._codec.segment, values.numel()))
        for first, end in segments(self._codec, values.numel()):
            size = self._codec.size(end - first)
            place = slice(start + first, start + end)
            part, code = values[first:end], data[at : at + size]
            if self._memory is not None:
                owed = owing[: end - first]
                self._write_owing(part, code, place, owed, 1.0 if unit is None else unit)
            else:
                self._codec.encode(part, code, mix(self._seed, place.start))
                if reread:
                    self._codec.decode(code, part)
            at += size
        return bytes_of(data)

    def _write_owing(
        self,
        part: torch.Tensor,
        code: torch.Tensor,
        place: slice,
        owing: torch.Tensor,
        unit: float,
    ) -> None:
        """Encode a segment and what was lost before; it is then what the code says."""
        assert self._memory is not None, "see _write"  # noqa: S101
        before, after = self._memory
        if not unit:
            # Whatever is sent counts for nothing: what is owed stays.
            self._codec.encode(part.zero_(), code, mix(self._seed, place.start))
            _take(after[place], before if before is None else before[place])
            return
        if before is None:
            torch.mul(part, 1 / unit, out=owing)
        else:
            torch.add(before[place], part, alpha=1 / unit, out=owing)
        self._codec.encode(owing, code, mix(self._seed, place.start))
        self._codec.decode(code, part)
        lost = torch.sub(owing, part, out=after[place])
        if unit != 1.0:
            part.mul_(unit)
        if not math.isfinite(lost.sum().item()):
            # What is not finite is said once, and must not come back in every later step.
            torch.nan_to_num(lost, 0.0, 0.0, 0.0, out=lost)

    # -- what arrives

    def add(self, share: int, pieces: Sequence[memoryview], weight: float) -> None:
        """See ChunkSum. It is left for the pass over the share that comes next."""
        self._catch_up(share)
        self._unread[share] = pieces
        self.weights[share] += weight

    def _catch_up(self, share: int) -> None:
        total = self._part(self._sum, share)
        for part, values in self._arrived(share, total):
            part.add_(values)

    def _arrived(
        self, share: int, total: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Segments of a share beside what of it has not been added yet; nothing if all has."""
        pieces = self._unread.pop(share, None)
        return iter(()) if pieces is None else self._beside(total, pieces, self._head_bytes)

    def fold(self, share: int, before: Sequence[Partial], after: Sequence[Partial]) -> None:
        """See ChunkSum."""
        total, own = self._part(self._sum, share), None
        if len(before) + len(after) > 1 and before:
            own, own_weight = total.clone(), self.weights[share]
            (pieces, self.weights[share]), *before = before
            for part, values in self._beside(total, pieces, self._head_bytes):
                part.copy_(values)
        for pieces, weight in before:
            self.add(share, pieces, weight)
        if own is not None:
            self._catch_up(share)
            total.add_(own)
            self.weights[share] += own_weight
        for pieces, weight in after:
            self.add(share, pieces, weight)

    def finish(self, share: int) -> None:
        """See ChunkSum; what is handed out is encoded, and is what the code says."""
        total, result = self._part(self._sum, share), self._part(self._result, share)
        if self._hands_out:
            self._catch_up(share)
            self._arithmetic.finish(total, total, self.weights[share])
            self._encoded[share] = self._write(share, None, reread=True)
        arrived, found = self._arrived(share, total), None
        for start, stop in segments(self._codec, total.numel()):
            if (ours := next(arrived, None)) is not None:
                part, values = ours
                part.add_(values)
            if self._hands_out:
                result[start:stop].copy_(total[start:stop])
            else:
                place = slice(start, stop)
                self._arithmetic.finish(total[place], result[place], self.weights[share])
            if found is None:
                found = first_nonfinite(result[start:stop], start)
        if found is not None and not self._hands_out:
            # Which of two NaNs a sum keeps depends on their order, which differs by node.
            result[result.isnan()] = math.nan
        self._conclude(share, found)

    def store(
        self, share: int, pieces: Sequence[memoryview], found: Finding | None = None
    ) -> None:
        """See ChunkSum."""
        self.findings[share] = found
        for part, values in self._beside(self._part(self._result, share), pieces, 0):
            part.copy_(values)

    def _beside(
        self, target: torch.Tensor, pieces: Sequence[memoryview], head_bytes: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each segment of the target, and what the pieces say of it, in memory that is used
        again; where they have a head, in its unit.

        Raises ProtocolError where that makes no sense.
        """
        if not target.numel():
            return
        # Pieces end where they like. They are small: joining them costs less than minding it.
        joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        data = torch.frombuffer(joined, dtype=torch.uint8)
        scratch = torch.empty(min(self._codec.segment, target.numel()))
        at, unit = head_bytes, _unit(joined) if head_bytes else 1.0
        for start, stop in segments(self._codec, target.numel()):
            size = self._codec.size(stop - start)
            values = scratch[: stop - start]
            try:
                self._codec.decode(data[at : at + size], values)
            except ValueError as error:
                raise ProtocolError(f"a share makes no sense: {error}") from None
            if unit != 1.0:
                values.mul_(unit)
            yield target[start:stop], values
            at += size


def _take(target: torch.Tensor, source: torch.Tensor | None) -> None:
    """Copy it; zeros where there is none."""
    if source is None:
        target.zero_()
    else:
        target.copy_(source)


def _unit(data: memoryview | bytes) -> float:
    """What stands before a code. Raises ProtocolError for what is no weight."""
    (unit,) = _HEAD.unpack_from(data)
    if not (math.isfinite(unit) and unit >= 0):
        raise ProtocolError(f"a share makes no sense: its unit is {unit}")
    return float(unit)


def seed_of(coding: Coding, key: Key, node: int, count: int | None) -> int:
    """Where one node's random numbers for one chunk begin.

    The same when the round is carried out once more; and, for what has an identity, the same
    in a job that goes on from a checkpoint, since it follows how often the chunk was reduced.
    """
    turn = key.sequence if count is None else count
    return mix(mix(mix(mix(coding.seed, coding.identity), turn), key.chunk), node)


def mix(seed: int, number: int) -> int:
    """A seed for the numbered part of what has this seed: 64 bits, far from its neighbours'.

    The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
    """
    value = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
