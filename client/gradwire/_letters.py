"""What a rank's outbox and inbox are given, and what they answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire._errors import AggregationError

NOTHING = memoryview(b"")
NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Sending:
    """One letter of this rank."""

    target: int
    tag: int
    data: memoryview
    seconds: float
    """How long it may take."""
    deadline: float
    sent: int = 0
    received: int = 0
    """Bytes that are out, and that have arrived."""
    small: bool = False
    """It went out with its offer."""


@dataclass(slots=True, eq=False)
class Receiving:
    """A place for one letter."""

    source: int | None
    """None: from whoever is first. Once a letter is found, its sender."""
    tag: int
    data: memoryview
    """What comes is written here."""
    seconds: float
    deadline: float
    received: int = 0


@dataclass(frozen=True, slots=True)
class Say:
    """Send a note, with what of the letter goes with it."""

    note: pb.Note
    payload: memoryview = NOTHING


@dataclass(frozen=True, slots=True)
class Ended:
    """A letter has been taken, or has failed."""

    what: Sending | Receiving
    error: AggregationError | None = None


Effect: TypeAlias = Say | Ended


def failure(kind: pb.Failure.Kind, reason: object) -> pb.Failure:
    """What the other side is told."""
    return pb.Failure(scope=pb.Failure.SCOPE_ROUND, kind=kind, reason=str(reason))


def earliest(letters: Iterable[Sending | Receiving]) -> float:
    """When the first of them is late."""
    return min((letter.deadline for letter in letters), default=NEVER)
