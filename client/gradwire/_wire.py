"""How a sum crosses the wire between nodes: what a user chooses by name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from gradwire_proto.wires import FED_BACK, ROUNDED_AT_RANDOM, WIRES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_proto.v1 import tensor_pb2 as pb

ROUNDINGS = ("nearest", "stochastic")
MOST_SEED = 2**64 - 1
DEFAULT_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Wire:
    """A wire and its options. Raises ValueError for what does not exist.

    In words, for connect() and GRADWIRE_WIRE: the name, a colon, and options with commas
    between them, such as "topk:ratio=0.05" or "int8:rounding=stochastic,seed=7,feedback=off".

    `ratio` is topk's: which part of the elements is sent, the largest. `rounding` is int8's and
    fp8's; "stochastic" draws its random numbers from `seed`. `feedback`: what is lost is added
    in the next step; by default for int8, fp8 and topk. Only what has a name can have it.
    """

    name: str = "exact"
    ratio: float = DEFAULT_RATIO
    rounding: str = "nearest"
    seed: int = 0
    feedback: bool | None = None

    def __post_init__(self) -> None:
        if self.name not in WIRES:
            raise ValueError(f"expected a wire of {', '.join(WIRES)}, got {self.name!r}")
        if not isinstance(self.ratio, (int, float)) or not 0 < self.ratio <= 1:
            raise ValueError(f"expected a ratio above 0, at most 1, got {self.ratio!r}")
        if self.rounding not in ROUNDINGS:
            raise ValueError(
                f"expected rounding to be one of {', '.join(ROUNDINGS)}, got {self.rounding!r}"
            )
        if not isinstance(self.seed, int) or not 0 <= self.seed <= MOST_SEED:
            raise ValueError(f"expected a seed of 0 to 2^64 - 1, got {self.seed!r}")
        if self.feedback not in (None, True, False):
            raise ValueError(
                f"expected feedback to be True, False or None, got {self.feedback!r}"
            )
        self._check_use()

    def _check_use(self) -> None:
        if self.ratio != DEFAULT_RATIO and self.name != "topk":
            raise ValueError(f"wire {self.name} has no ratio; topk has")
        if self.rounding != "nearest" and self.number not in ROUNDED_AT_RANDOM:
            raise ValueError(f"wire {self.name} has no stochastic rounding; int8 and fp8 have")
        if self.feedback and self.name == "exact":
            raise ValueError("wire exact loses nothing that could be fed back")

    @classmethod
    def of(cls, given: Wire | str) -> Wire:
        """A wire, or what words say. Raises ValueError with what may be said."""
        if isinstance(given, Wire):
            return given
        if not isinstance(given, str):
            raise ValueError(
                f"expected a wire's name or a gradwire.Wire, got {type(given).__name__}"
            )
        name, _, options = given.partition(":")
        wire = cls(name.strip())
        for option in filter(None, map(str.strip, options.split(","))):
            key, _, text = option.partition("=")
            wire = replace(wire, **_option(key.strip(), text.strip()))
        return wire

    @property
    def number(self) -> pb.Wire:
        """As messages have it."""
        return WIRES[self.name]

    @property
    def feeds_back(self) -> bool:
        """What is lost is added in the next step, where there is a name to keep it under."""
        return self.number in FED_BACK if self.feedback is None else self.feedback

    @property
    def is_stochastic(self) -> bool:
        """It rounds at random."""
        return self.rounding == "stochastic"


EXACT = Wire()

AnyWire: TypeAlias = Wire | str


def _option(key: str, text: str) -> dict[str, Any]:
    if key not in _OPTIONS:
        known = ", ".join(_OPTIONS)
        raise ValueError(f"expected an option of {known}, got {key!r}")
    try:
        return {key: _OPTIONS[key](text)}
    except ValueError:
        raise ValueError(f"{key}={text}: expected {_EXPECTED[key]}") from None


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(text)
    return text == "on"


_OPTIONS: dict[str, Callable[[str], object]] = {
    "ratio": float,
    "rounding": str,
    "seed": int,
    "feedback": _switch,
}
_EXPECTED = {
    "ratio": "a number above 0, at most 1",
    "rounding": " or ".join(ROUNDINGS),
    "seed": "a whole number",
    "feedback": "on or off",
}
assert {each.name for each in fields(Wire)} == {"name", *_OPTIONS}, "an option has no words"  # noqa: S101
