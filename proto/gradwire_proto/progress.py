"""How far the ranks of a job are, when it is taken up again: what all must agree on. Pure.

Collectives are counted from 0, over all attempts. In the first attempt that number is their
sequence; in all later ones it is their sequence less one, since these begin with a collective
of their own, the *replay*: what some ranks have of results and others lack. It takes the
sequence before that of the first collective that somebody has not completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire_proto.v1 import aggregator_pb2 as pb

MOST_LAPSES = 64
"""Failed collectives that a rank tells of: others lag behind it by fewer."""


class Position(NamedTuple):
    """The first chunk that is without a result."""

    collective: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Muster:
    """How far all ranks are."""

    low: Position
    """All have the results of all chunks before this one."""
    high: Position
    """Nobody has that of this one, or of a later one."""
    provider: int
    """The lowest rank that is so far."""
    lapses: dict[int, pb.Failure]
    """Collectives of which some rank knows that they failed: so they have, for all."""


def shift(attempt: int) -> int:
    """A collective's sequence less its number."""
    return min(attempt, 1)


def muster(progress: Iterable[pb.Progress]) -> Muster:
    """How far these ranks are, all together; at least one."""
    everybody = sorted(progress, key=lambda each: each.rank)
    lapses: dict[int, pb.Failure] = {}
    for each in everybody:
        for lapse in each.lapses:
            lapses.setdefault(lapse.sequence, lapse.failure)
    positions = {each.rank: _position(each, lapses) for each in everybody}
    high = max(positions.values())
    provider = next(rank for rank, position in positions.items() if position == high)
    return Muster(min(positions.values()), high, provider, lapses)


def position_of(number: int, chunk: int, lapses: Iterable[int]) -> Position:
    """The same position, with collectives that failed passed over."""
    position = Position(number, chunk)
    failed = set(lapses)
    while position.collective in failed:
        position = Position(position.collective + 1, 0)
    return position


def _position(progress: pb.Progress, lapses: Iterable[int]) -> Position:
    return position_of(progress.sequence, progress.chunk, lapses)
