"""Names whoever a collective waits for, and says when it has waited too long."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gradwire_server.errors import LateError
from gradwire_server.logs import about

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gradwire_server.chain import Stall
    from gradwire_server.execution import Arrived
    from gradwire_server.group import Group
    from gradwire_server.metrics import Metrics
    from gradwire_server.round import Round
    from gradwire_server.terms import Terms

log = logging.getLogger(__name__)

PEER_GRACE_SECONDS = 1.0
"""A node whose ranks are complete waits this much longer: its peers know who is late."""

MOST_LINES = 16
"""Collectives that are warned of one by one; of more at a time, only their number is told."""

MOST_TOLD = 1024

Waiting: TypeAlias = "Round[Arrived] | Stall"


@dataclass(slots=True)
class _Told:
    """A collective that has been warned of."""

    since: float
    whom: str
    ranks: tuple[int, ...]
    aloud: bool
    """In a line of its own."""
    over: bool = False
    """It has gone on. Others of its chunks may be late later: that is no news."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """A collective that stalls, as people are told of it."""

    sequence: int
    since: float
    ranks: tuple[int, ...]
    """Local ranks that it waits for; none: for other nodes."""
    whom: str


class Lateness:
    """Looks at a generation's open rounds now and then."""

    def __init__(self, group: Group, metrics: Metrics, terms: Terms) -> None:
        self._group = group
        self._metrics = metrics
        self._terms = terms
        self.stalled: list[Stalled] = []
        """At the last look."""
        self._told: dict[int, _Told] = {}

    def look(
        self,
        rounds: Iterable[Waiting],
        now: float,
        failed: Callable[[int], bool] = lambda _: False,
    ) -> list[tuple[int, LateError]]:
        """Warn once of each collective that stalls, and say once that it goes on, unless it
        has failed. The collectives to fail, and why.
        """
        late = self._late(rounds, now)
        self._note(
            Stalled(sequence, one.opened, tuple(one.missing), self._whom(one))
            for sequence, one in late.items()
        )
        self._clear(late, now, failed)
        self._warn(late, now)
        return list(self._overdue(late, now))

    def close(self) -> None:
        """Nothing stalls here any more."""
        self._note(())

    def _late(self, rounds: Iterable[Waiting], now: float) -> dict[int, Waiting]:
        """Of each collective that stalls the oldest chunk, in order."""
        late: dict[int, Waiting] = {}
        for round_ in sorted(rounds, key=lambda each: (each.sequence, each.opened)):
            if now - round_.opened >= self._terms.warn_seconds:
                late.setdefault(round_.sequence, round_)
        return late

    def _warn(self, late: dict[int, Waiting], now: float) -> None:
        news = [round_ for sequence, round_ in late.items() if sequence not in self._told]
        for place, round_ in enumerate(news):
            told = _Told(
                round_.opened, self._whom(round_), self._ranks(round_), aloud=place < MOST_LINES
            )
            self._told[round_.sequence] = told
            if told.aloud:
                text = _text(round_, told.whom, now)
                extra = self._about(round_.sequence, told.ranks)
                log.warning("%s: %s", self._generation, text, extra=extra)
        if len(news) > MOST_LINES:
            more = len(news) - MOST_LINES
            log.warning("%s: so have %d more", self._generation, more, extra=self._about())

    def _clear(
        self, late: dict[int, Waiting], now: float, failed: Callable[[int], bool]
    ) -> None:
        for sequence, told in self._told.items():
            if told.over or sequence in late:
                continue
            told.over = True
            if told.aloud and not failed(sequence):
                text = f"round {sequence} goes on after {now - told.since:.1f} s"
                log.info(
                    "%s: %s; it had waited for %s",
                    *(self._generation, text, told.whom),
                    extra=self._about(sequence, told.ranks),
                )
        past = [sequence for sequence, told in self._told.items() if told.over]
        for sequence in past[: max(0, len(self._told) - MOST_TOLD)]:
            del self._told[sequence]

    def _overdue(self, late: dict[int, Waiting], now: float) -> Iterator[tuple[int, LateError]]:
        for sequence, round_ in late.items():
            timeout, name = self._terms.timeout_seconds, "timeout"
            if round_.first_step and self._terms.first_timeout_seconds > timeout:
                timeout, name = self._terms.first_timeout_seconds, "first step's timeout"
            grace = 0.0 if round_.missing else PEER_GRACE_SECONDS
            if now - round_.opened > timeout + grace:
                text = _text(round_, self._whom(round_), now)
                text = f"{text}; the {name} is {timeout:g} s"
                ranks = self._ranks(round_)
                yield sequence, LateError(text, round_=sequence, ranks=ranks)

    @property
    def _generation(self) -> str:
        return f"generation {self._group.picture.generation[:8]}"

    def _about(
        self, sequence: int | None = None, ranks: tuple[int, ...] = ()
    ) -> dict[str, object]:
        # There are few of them: see MOST_LINES.
        generation = self._group.picture.generation
        return about(generation, round_=sequence, ranks=ranks, each_is_news=True)

    def _note(self, stalled: Iterable[Stalled]) -> None:
        before, self.stalled = len(self.stalled), list(stalled)
        self._metrics.stalled_rounds.inc(len(self.stalled) - before)

    def _whom(self, round_: Waiting) -> str:
        if round_.missing:
            return self._group.describe(round_.missing)
        return "; ".join(map(self._group.picture.describe, self._group.peers))

    def _ranks(self, round_: Waiting) -> tuple[int, ...]:
        """Those of whom `_whom` speaks."""
        if round_.missing:
            return tuple(round_.missing)
        nodes = self._group.picture.nodes
        return tuple(rank for peer in self._group.peers for rank in nodes[peer].ranks)


def _text(round_: Waiting, whom: str, now: float) -> str:
    return f"{round_} has waited {now - round_.opened:.1f} s for {whom}"
