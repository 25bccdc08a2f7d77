"""How far one generation is on one node, whether its ranks add up by themselves or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire_server.chain import Chain, Stall
    from gradwire_server.execution import Arrived
    from gradwire_server.group import Group
    from gradwire_server.round import Round, Rounds


class Headway:
    """What people and the engine ask of it; changes nothing."""

    def __init__(self, group: Group, chain: Chain | None, rounds: Rounds[Arrived]) -> None:
        self._group = group
        self._chain = chain
        self._rounds = rounds
        self._done = 0

    def count(self) -> None:
        """A round has ended well."""
        self._done += 1

    @property
    def chained(self) -> bool:
        """The local ranks add by themselves."""
        return self._chain is not None and self._chain.in_use

    @property
    def _alone(self) -> bool:
        return self.chained and not self._group.peers

    @property
    def done(self) -> int:
        """Rounds that ended well."""
        if self._chain is not None and self._alone:
            return self._chain.tally().rounds
        return self._done

    @property
    def open_rounds(self) -> int:
        """Rounds without a result."""
        if self._chain is not None and self._alone:
            return self._chain.open
        return len(self._rounds.open)

    @property
    def under_way(self) -> int | None:
        """The oldest collective without a result."""
        if self._chain is not None and (oldest := self._chain.oldest) is not None:
            return oldest
        return min((each.sequence for each in self._rounds.open), default=None)

    def sequences(self, rank: int) -> int:
        """Collectives that a local rank has brought all of."""
        if self._chain is None or not self._chain.in_use:
            return self._rounds.sequences(rank)
        brought = self._chain.sequences(rank)
        while self.has_failed(brought):
            brought += 1
        return brought

    def has_failed(self, sequence: int) -> bool:
        """Whether a collective has."""
        return self._rounds.failure(sequence) is not None

    def is_over(self, sequence: int) -> bool:
        """Whether nobody waits for a collective any more."""
        return self._group.failure is not None or self.has_failed(sequence)

    def waiting(self, now: float) -> list[Round[Arrived] | Stall]:
        """What is under way."""
        rounds = self._rounds.open
        if self._chain is None or not self.chained or self._group.failure is not None:
            return list(rounds)
        return self._chain.waiting(rounds, now, self.has_failed)

    def arrivals(self, since: int) -> dict[int, dict[int, float]] | None:
        """See Chain.arrivals; None where the daemon sees for itself who comes when."""
        return self._chain.arrivals(since) if self._chain and self.chained else None
