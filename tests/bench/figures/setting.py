"""What is measured, and what it ought to reach. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB, MIB, MB = 1 << 10, 1 << 20, 10**6
_QUICK_BYTES = 2 * MIB
"""Too large for single calls to be timed, hundreds of them, which a delay would make long."""

Figure: TypeAlias = Literal["x gloo", "efficiency", "of the links' rate", "x fewer bytes"]
Row: TypeAlias = "Mapping[str, Any]"
"""An object that a measurement printed as JSON; of a benchmark, see gradwire_ops.bench_row."""


@dataclass(frozen=True, slots=True)
class Bar:
    """This figure has to be at least so much for a tensor of this size."""

    size_bytes: int
    figure: Figure
    least: float


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One run of `gradwire bench`."""

    name: str
    section: str
    title: str
    flags: str
    sizes: tuple[int, ...] | None = None
    """None: those that `gradwire bench` has by default."""
    bars: tuple[Bar, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, *, rounds: int, quick: bool) -> tuple[str, ...]:
        """Module and arguments. Quick: a single size, and a small one."""
        sizes: tuple[int, ...] = (_QUICK_BYTES,) if quick else self.sizes or ()
        listed = ("--sizes", ",".join(map(str, sizes))) if sizes else ()
        repeat = ("--repeat", "1" if quick else str(rounds))
        return ("gradwire_ops", "bench", *self.flags.split(), *listed, *repeat, "--json")


@dataclass(frozen=True, slots=True)
class Program:
    """One run of a module of this package, which prints a list of rows as JSON."""

    name: str
    section: str
    title: str
    module: str
    arguments: str = ""

    def command(self, *, rounds: int, quick: bool) -> tuple[str, ...]:
        """Module and arguments. Quick is the program's own to understand."""
        fast = ("--quick",) if quick else ()
        arguments = (*self.arguments.split(), "--rounds", "1" if quick else str(rounds), *fast)
        return (self.module, *arguments)


Setting: TypeAlias = Benchmark | Program


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of a setting."""

    setting: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """In this training the first bucket goes before the last layer's backward pass begins.

    A step takes at most so much of compute and communication together.
    """

    setting: str
    most: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A byte of `one` takes at most so many times as long as a byte of `other`."""

    claim: str
    one: Cell
    other: Cell
    most: float


Aim: TypeAlias = Comparison | Overlap
"""Beside the bars: what can't be said of a single row of a benchmark."""
