"""Which ranks have brought what to which collective. Pure.

A round is the reduction of one chunk of one collective. Its key is (sequence, chunk) inside a
generation, never a bucket index: DDP rebuilds its buckets after the first iteration.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from gradwire_proto.chunks import cut
from gradwire_proto.dtypes import (
    DTYPES,
    LEAST_WEIGHT,
    MOST_WEIGHT,
    OP_NAMES,
    is_defined,
    is_weight,
    sum_itemsize,
)
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_proto.wires import LOSSY, MOST_ELEMENTS, WIRE_NAMES, may_lose
from gradwire_server.errors import MismatchError, ProtocolError, ReductionError

if TYPE_CHECKING:
    from collections.abc import Iterable

P = TypeVar("P")

FAILURES_KEPT = 1024
"""Failed collectives that are remembered though all local ranks have gone on; else, all."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A chunk of a collective."""

    sequence: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Coding:
    """A lossy wire, and what goes with it; see Spec in tensor.proto."""

    wire: pb.Wire
    ratio: float = 0.0
    stochastic: bool = False
    seed: int = 0
    identity: int = 0
    feedback: bool = False
    revoked: bool = False

    @classmethod
    def read(cls, spec: pb.Spec) -> Coding | None:
        """What a message says; None where the wire is exact."""
        if spec.wire == pb.WIRE_EXACT:
            return None
        return cls(
            wire=spec.wire,
            ratio=spec.ratio,
            stochastic=spec.stochastic,
            seed=spec.seed,
            identity=spec.identity,
            feedback=spec.feedback,
            revoked=spec.revoked,
        )

    def write(self, spec: pb.Spec) -> None:
        """Into the message that says so."""
        spec.wire, spec.ratio = self.wire, self.ratio
        spec.stochastic, spec.seed = self.stochastic, self.seed
        spec.identity, spec.feedback = self.identity, self.feedback
        spec.revoked = self.revoked

    @property
    def mistake(self) -> str:
        """What is wrong with it; empty where nothing is."""
        if self.wire not in LOSSY:
            return f"wire {self.wire} is not known"
        if self.wire == pb.WIRE_TOPK and not 0 < self.ratio <= 1:
            return f"expected a ratio above 0, at most 1, got {self.ratio:g}"
        if self.feedback and not self.identity:
            return "feedback needs an identity"
        return ""

    def __str__(self) -> str:
        words = [WIRE_NAMES.get(self.wire, f"wire {self.wire}")]
        if self.wire == pb.WIRE_TOPK:
            words.append(f"ratio {self.ratio:g}")
        if self.stochastic:
            words.append(f"stochastic from {self.seed}")
        if self.feedback:
            words.append("with feedback")
        if self.revoked:
            words.append("after a step that was not finite")
        if self.identity:
            # Two ranks may differ in this alone: they call the tensor by other names.
            words.append(f"named {self.identity:016x}")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Spec:
    """What all ranks must bring alike."""

    op: pb.Op
    dtype: pb.Dtype
    elements: int
    shape_digest: int
    shapes: str = field(default="", compare=False)
    coding: Coding | None = None
    """None: the wire is exact."""
    inspected: bool = False
    skips: bool = False
    first_step: bool = field(default=False, compare=False)
    """Of the first training step, which is waited for longer."""

    @classmethod
    def read(cls, spec: pb.Spec) -> Spec:
        """What a message says."""
        return cls(
            spec.op,
            spec.dtype,
            spec.elements,
            spec.shape_digest,
            spec.shapes,
            Coding.read(spec),
            spec.inspected,
            spec.skips,
            spec.first_step,
        )

    def write(self) -> pb.Spec:
        """The message that says so."""
        spec = pb.Spec(
            op=self.op,
            dtype=self.dtype,
            elements=self.elements,
            shape_digest=self.shape_digest,
            shapes=self.shapes,
            wire=pb.WIRE_EXACT,
            inspected=self.inspected,
            skips=self.skips,
            first_step=self.first_step,
        )
        if self.coding is not None:
            self.coding.write(spec)
        return spec

    def __str__(self) -> str:
        # Anybody may send a number that has no name: that is to be told, not to fail on.
        op = OP_NAMES.get(self.op, f"op {self.op}")
        dtype = DTYPES[self.dtype].name if self.dtype in DTYPES else f"dtype {self.dtype}"
        shapes = f" [{self.shapes}]" if self.shapes else ""
        if self.shapes.endswith("..."):
            # The rest is left out; where two differ only there, this still tells them apart.
            shapes += f" (shapes {self.shape_digest:08x})"
        wire = "" if self.coding is None else f" over wire {self.coding}"
        policy = (
            f" with nonfinite {'skip' if self.skips else 'raise'}" if self.inspected else ""
        )
        return f"{op} of {self.elements} x {dtype}{shapes}{wire}{policy}"


@dataclass(frozen=True, slots=True)
class Extent:
    """One chunk of a tensor."""

    start: int
    """The tensor's element that is its first."""
    elements: int
    size: int
    """Bytes, in the tensor's own type."""
    final: bool
    """The tensor has no chunk after it."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One rank's chunk; no payload where it is in the node's sum already."""

    spec: Spec
    weight: float
    payload: memoryview | None = None

    @property
    def is_blank(self) -> bool:
        """The rank brings nothing of what is gathered."""
        return self.spec.op == pb.OP_GATHER and not self.weight

    def extent(self, who: str, chunk: int, chunk_bytes: int) -> Extent:
        """Which part of the tensor the chunk is.

        Raises ProtocolError for what nobody could reduce.
        """
        spec, weight = self.spec, self.weight
        if spec.dtype not in DTYPES or spec.op not in OP_NAMES:
            raise ProtocolError(f"{who} brought an op or dtype that is not known: {spec}")
        if not is_defined(spec.op, spec.dtype):
            raise ProtocolError(f"{who} brought what has no meaning: {spec}")
        if (coding := spec.coding) is not None and (mistake := coding.mistake or _unfit(spec)):
            raise ProtocolError(f"{who} brought {spec}: {mistake}")
        info = DTYPES[spec.dtype]
        allowed = weight == 1.0 if info.is_integer else is_weight(weight)
        if self.payload is not None and spec.op == pb.OP_MEAN and not allowed:
            range_ = f"0, or {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
            expected = "1 for integers" if info.is_integer else range_
            raise ProtocolError(f"{who} brought weight {weight}, expected {expected}")
        chunks = cut(spec.elements, sum_itemsize(spec.op, spec.dtype), chunk_bytes)
        if chunk >= chunks.count:
            raise ProtocolError(f"{who} brought chunk {chunk} of {chunks.count}")
        start, stop = chunks.range(chunk)
        size = (stop - start) * info.itemsize
        return Extent(start, stop - start, size, chunk == chunks.count - 1)


def _unfit(spec: Spec) -> str:
    """Why no lossy wire carries this."""
    if spec.elements > MOST_ELEMENTS:
        return f"a lossy wire carries at most {MOST_ELEMENTS} elements"
    fits = may_lose(spec.op, spec.dtype)
    return "" if fits else "lossy wires carry sums and means of 16- and 32-bit floats"


class Round(Generic[P]):
    """One chunk of one collective, from its first contribution to its result.

    P is what arrives from other nodes; it is kept, in order, for whoever carries the round out.
    """

    def __init__(self, key: Key, ranks: tuple[int, ...], opened: float) -> None:
        self.key = key
        self.opened = opened
        self.begun = 0  # CLOCK_MONOTONIC, nanoseconds; by the first local rank
        self.contributions: dict[int, Contribution] = {}
        self.arrived: deque[P] = deque()
        self._ranks = ranks
        self._spec: Spec | None = None
        self._witness = ""

    @property
    def sequence(self) -> int:
        """Number of the collective."""
        return self.key.sequence

    @property
    def spec(self) -> Spec:
        """What is being reduced; known once somebody has brought it."""
        assert self._spec is not None, "a round is opened by whoever brings its spec"  # noqa: S101
        return self._spec

    @property
    def first_step(self) -> bool:
        """Of the first training step."""
        return self._spec is not None and self._spec.first_step

    @property
    def missing(self) -> list[int]:
        """Local ranks that have not contributed."""
        return [rank for rank in self._ranks if rank not in self.contributions]

    def contribute(self, rank: int, contribution: Contribution, now: int = 0) -> None:
        """Take a local rank's chunk."""
        if rank in self.contributions:
            raise ProtocolError(f"{self}: rank {rank} contributed twice", ranks=[rank])
        self._compare(f"rank {rank}", contribution.spec)
        self.begun = self.begun or now
        self.contributions[rank] = contribution

    def summed(self, who: str, contribution: Contribution) -> None:
        """The local ranks have made their sum by themselves."""
        self._compare(who, contribution.spec)
        self.contributions = dict.fromkeys(self._ranks, contribution)

    def arrive(self, who: str, spec: Spec, part: P) -> None:
        """Keep what another node sent."""
        self._compare(who, spec)
        self.arrived.append(part)

    def _compare(self, who: str, spec: Spec) -> None:
        if self._spec is None:
            self._spec, self._witness = spec, who
        elif spec != self._spec:
            raise mismatch(self.sequence, self._witness, self._spec, who, spec)

    def __str__(self) -> str:
        return f"round {self.key.sequence}"


def mismatch(
    sequence: int, who: str, brought: Spec, other: str, differs: Spec
) -> MismatchError:
    """Two have brought different things to one collective."""
    return MismatchError(
        f"round {sequence}: {who} brought {brought}, but {other} brought {differs}."
        " All ranks must call the same collectives on the same shapes in the same order"
    )


class Rounds(Generic[P]):
    """All open rounds of a generation at one node, and the collectives that failed."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = tuple(ranks)
        self._open: dict[Key, Round[P]] = {}
        self._failed: OrderedDict[int, ReductionError] = OrderedDict()
        self._last: dict[int, Key] = {rank: Key(-1, 0) for rank in self._ranks}
        self._incomplete: set[int] = set()
        self._newest = Key(-1, 0)
        """Of the rounds that have had their result."""
        self._leap: tuple[int, Key] | None = None
        """After this collective comes this chunk."""

    def resume(self, replay: int, after: Key) -> None:
        """The first collective is this one; the next chunk after it is that one."""
        self._last = dict.fromkeys(self._ranks, Key(replay - 1, 0))
        self._leap = replay, after

    @property
    def open(self) -> list[Round[P]]:
        """Rounds without a result, in no order."""
        return list(self._open.values())

    def sequences(self, rank: int) -> int:
        """Collectives that this local rank has brought all of."""
        return self._last[rank].sequence + (0 if rank in self._incomplete else 1)

    def failure(self, sequence: int) -> ReductionError | None:
        """Why this collective failed."""
        return self._failed.get(sequence)

    def advance(self, rank: int, key: Key, *, final: bool) -> None:
        """A local rank brings this chunk, the tensor's last or not.

        Raises ProtocolError unless it is the rank's next one.
        """
        last = self._last[rank]
        successors = [Key(last.sequence, last.chunk + 1), Key(last.sequence + 1, 0)]
        if self._leap is not None and self._leap[0] == last.sequence:
            successors.append(self._leap[1])
        while successors[-1].sequence in self._failed:
            # Known to have failed before the rank came to it, which then passes it over.
            successors.append(Key(successors[-1].sequence + 1, 0))
        if key not in successors:
            raise ProtocolError(
                f"rank {rank} expected to bring chunk {last.chunk + 1} of round {last.sequence}"
                f" or chunk 0 of round {last.sequence + 1}, got chunk {key.chunk} of round"
                f" {key.sequence}"
            )
        self._last[rank] = key
        if final:
            self._incomplete.discard(rank)
        else:
            self._incomplete.add(rank)

    def passed(self, key: Key) -> None:
        """All local ranks have brought this chunk, and those before it."""
        self._last = dict.fromkeys(self._ranks, key)

    def get(self, key: Key, now: float) -> Round[P] | None:
        """The open round of this key, opened now if need be; None where its time is past."""
        if key.sequence in self._failed:
            return None
        if (found := self._open.get(key)) is not None:
            return found
        # It may be over while no local rank has gone on to the next: then it is the newest.
        if key == self._newest:
            return None
        if self._ranks and all(last > key for last in self._last.values()):
            return None
        return self._open.setdefault(key, Round(key, self._ranks, now))

    def clear(self) -> None:
        """The job is over; no round will have a result."""
        self._open.clear()

    def close(self, key: Key) -> None:
        """The round has its result."""
        self._open.pop(key, None)
        self._newest = max(self._newest, key)

    def fail(self, sequence: int, error: ReductionError) -> list[Round[P]] | None:
        """Drop a collective's rounds; None where it had failed before."""
        if sequence in self._failed:
            return None
        self._failed[sequence] = error
        slowest = min((last.sequence for last in self._last.values()), default=sequence)
        while len(self._failed) > FAILURES_KEPT and next(iter(self._failed)) < slowest:
            self._failed.popitem(last=False)
        dropped = [found for key, found in self._open.items() if key.sequence == sequence]
        for found in dropped:
            del self._open[found.key]
        return dropped

    def begun(self, sequence: int) -> list[int]:
        """Local ranks that have begun this collective, and so wait for its result."""
        return [rank for rank, last in self._last.items() if last.sequence >= sequence]
