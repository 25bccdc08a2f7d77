"""Which wire a tensor, or each part of a bucket, takes, and under which name its loss is kept.

A bucket index is no name: DDP builds its buckets anew after the first step, and another bucket
size builds others. So what is lost is kept under the names of the parameters that a piece of a
bucket holds, in their order: another piece has another name, and begins with nothing.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from torch.utils.weak import WeakTensorKeyDictionary

from gradwire._wire import EXACT, AnyWire, Wire
from gradwire_proto.wires import may_lose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from gradwire._names import Names
    from gradwire._tensor import Shape
    from gradwire_proto.v1 import tensor_pb2 as pb


log = logging.getLogger(__name__)

LEAST_ELEMENTS = 1024
"""A smaller tensor by itself, a loss or a count, is not worth losing anything of: it costs its
message, not its bytes."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a rule in the form of a function decides on."""

    name: str | None
    """None where the session watches no model that has it, or a tensor by itself has none."""
    shape: Shape
    dtype: torch.dtype


Rules: TypeAlias = "Sequence[tuple[str, AnyWire]] | Callable[[Parameter], AnyWire]"
"""Patterns of names, as in a shell, and the wire of what matches: the first one counts, and
what none matches goes exact. Or a function."""

Wiring: TypeAlias = "AnyWire | Rules"
"""What connect() takes."""

Rule: TypeAlias = "Wire | tuple[tuple[str, Wire], ...] | Callable[[Parameter], AnyWire]"
"""The same, checked."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What the loss of a tensor is kept under."""

    identity: int
    """64 bits, not 0."""
    text: str
    lasting: bool
    """It means the same in another run."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A tensor's way over a lossy wire."""

    wire: Wire
    naming: Naming | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive parameters of a bucket that take the same wire."""

    start: int
    stop: int
    """Elements of the bucket."""
    shapes: tuple[Shape, ...]
    coded: Coded | None
    """None: exact."""

    def is_all(self, bucket: torch.Tensor) -> bool:
        """Nothing else is in the bucket."""
        return self.stop - self.start == bucket.numel()


class Wires:
    """One session's choice. Methods may be called from any thread."""

    def __init__(self, rule: Rule, names: Names) -> None:
        self._names = names
        self._numbers: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._unused = count()
        self._warned = False
        self._rule = rule
        self.known: dict[int, Naming] = {}
        """What losses are kept under, so far."""
        self._pieces: dict[int, tuple[str, ...]] = {}
        """The parameters of each piece of a bucket that there was."""
        self._piece_of: dict[str, int] = {}
        """In which piece each parameter was last."""

    @property
    def is_exact(self) -> bool:
        """Nothing is ever lost."""
        return self._rule == EXACT

    def coded(
        self, tensor: torch.Tensor, wire: AnyWire | None, op: str, name: str | None
    ) -> Coded | None:
        """How a tensor by itself crosses the wire: what is given with it, else what the rules
        say, which small ones need not follow; None where that is exact.

        Raises ValueError for a wire that does not exist.
        """
        shape = tuple(tensor.shape)
        if wire is None and (self.is_exact or tensor.numel() < LEAST_ELEMENTS):
            return None
        if wire is None and name is None and isinstance(self._rule, tuple):
            return None
        chosen = (
            self._decide(Parameter(name, shape, tensor.dtype))
            if wire is None
            else Wire.of(wire)
        )
        if chosen.name == "exact":
            return None
        # Quoted: no parameter of a bucket is called so.
        naming = None if name is None else self._know(_name(op, ((repr(name), shape),), True))
        return Coded(chosen, naming)

    def pieces(self, parameters: Sequence[torch.Tensor], elements: int) -> tuple[Piece, ...]:
        """How a bucket's mean crosses the wire. Raises ValueError for what is no wire."""
        shapes = tuple(tuple(each.shape) for each in parameters)
        sizes = [each.numel() * (2 if each.is_complex() else 1) for each in parameters]
        if isinstance(self._rule, Wire) or sum(sizes) != elements:
            wire = self._rule if isinstance(self._rule, Wire) else EXACT
            return (Piece(0, elements, shapes, self._coded(wire, parameters)),)
        decided = [
            self._decide(Parameter(self._names.of(each), tuple(each.shape), each.dtype))
            for each in parameters
        ]
        pieces, first, start = [], 0, 0
        for last in range(1, len(parameters) + 1):
            if last < len(parameters) and decided[last] == decided[first]:
                continue
            stop = start + sum(sizes[first:last])
            coded = self._coded(decided[first], parameters[first:last])
            pieces.append(Piece(start, stop, shapes[first:last], coded))
            first, start = last, stop
        return tuple(pieces)

    def lasting(self, residuals: Iterable[int]) -> set[int]:
        """Which of these identities are of no piece of a bucket that is no more: all of their
        parameters have been in another piece since.
        """
        return {each for each in residuals if self._is_current(each)}

    def _is_current(self, identity: int) -> bool:
        called = self._pieces.get(identity)
        return called is None or any(self._piece_of[name] == identity for name in called)

    def _coded(self, wire: Wire, parameters: Sequence[torch.Tensor]) -> Coded | None:
        if wire.name == "exact":
            return None
        called = tuple(self._called(each) for each in parameters)
        shapes = (tuple(each.shape) for each in parameters)
        lasting = all(self._names.of(each) is not None for each in parameters)
        naming = _name("mean", tuple(zip(called, shapes, strict=True)), lasting)
        self._pieces[naming.identity] = called
        self._piece_of.update(dict.fromkeys(called, naming.identity))
        return Coded(wire, self._know(naming))

    def _decide(self, parameter: Parameter) -> Wire:
        rule = self._rule
        if isinstance(rule, Wire):
            return rule
        if isinstance(rule, tuple):
            if parameter.name is None:
                self._warn()
                return EXACT
            name = parameter.name
            return next((wire for pattern, wire in rule if fnmatchcase(name, pattern)), EXACT)
        return Wire.of(rule(parameter))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "a parameter has no name, so no rule holds for it, and it goes exact: give"
                " connect(model=...) the model, or call watch(model)"
            )

    def _called(self, parameter: torch.Tensor) -> str:
        """Its name, or the number under which this session has met it first."""
        name = self._names.of(parameter)
        if name is not None:
            return name
        if parameter not in self._numbers:
            # Never one that was another's, who is gone.
            self._numbers[parameter] = f"#{next(self._unused)}"
        number: str = self._numbers[parameter]
        return number

    def _know(self, naming: Naming) -> Naming:
        return self.known.setdefault(naming.identity, naming)

    def recall(self, identity: int, text: str) -> None:
        """A checkpoint has it, under a name that lasts."""
        self._know(Naming(identity, text, True))


def carried(wire: Wire, op: pb.Op, dtype: pb.Dtype) -> bool:
    """Whether this wire is lossy, and carries this."""
    return wire.name != "exact" and may_lose(op, dtype)


def read(wiring: Wiring) -> Rule:
    """What connect() was given. Raises ValueError for what is no wire and no rule."""
    if isinstance(wiring, (str, Wire)):
        return Wire.of(wiring)
    if callable(wiring):
        return wiring
    pairs = list(wiring) if isinstance(wiring, (list, tuple)) else []
    if not pairs or not all(
        isinstance(each, (list, tuple)) and len(each) == 2 for each in pairs
    ):
        raise ValueError(
            "expected a wire, a function, or a list of pairs of a pattern and a wire, got"
            f" {wiring!r}"
        )
    return tuple((str(pattern), Wire.of(wire)) for pattern, wire in pairs)


@lru_cache(maxsize=1024)
def _name(op: str, named: tuple[tuple[str, object], ...], lasting: bool) -> Naming:
    text = f"{op} of " + "; ".join(f"{name} {shape}" for name, shape in named)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return Naming(int.from_bytes(digest, "little") or 1, text, lasting)
