"""Ranks that leave in good order, and what can't complete after that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_server.errors import LostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_server.chain import Chain
    from gradwire_server.execution import Arrived
    from gradwire_server.group import Group
    from gradwire_server.headway import Headway
    from gradwire_server.round import Rounds
    from gradwire_server.settling import Settling


class Departures:
    """Of one generation, here and on other nodes."""

    def __init__(  # noqa: PLR0913 - all that a rank may leave waiting; Engine puts it together
        self,
        group: Group,
        rounds: Rounds[Arrived],
        chain: Chain | None,
        headway: Headway,
        settling: Settling,
        fail: Callable[[LostError], None],
    ) -> None:
        self._group = group
        self._rounds = rounds
        self._chain = chain
        self._headway = headway
        self._settling = settling
        self._fail = fail

    def depart(self, rank: int, sequences: int) -> None:
        """A rank has left after so many collectives."""
        self._group.depart(rank, sequences)
        self._settling.depart(rank, self._group.deserted)
        if self._chain is not None:
            self._chain.limit(sequences)
            if rank in self._group.local_ranks:
                self._chain.depart(rank)
            self.check()
        for round_ in self._rounds.open:
            try:
                self._group.check(round_.key.sequence)
            except LostError as error:
                self._fail(error)

    def check(self) -> None:
        """A rank may have been handed a collective while others learnt that somebody left."""
        if self._chain is not None and self._headway.chained:
            gone = self._group.departure(self._chain.submitted - 1)
            if gone is not None:
                self._fail(gone)
