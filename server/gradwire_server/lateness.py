"""Names whoever a round waits for, and says when it has waited too long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gradwire_server.errors import LateError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire_server.chain import Stall
    from gradwire_server.execution import Arrived
    from gradwire_server.group import Group
    from gradwire_server.metrics import Metrics
    from gradwire_server.round import Round

log = logging.getLogger(__name__)

PEER_GRACE_SECONDS = 1.0
"""A node whose ranks are complete waits this much longer: its peers know who is late."""


class Lateness:
    """Looks at a generation's open rounds now and then."""

    def __init__(
        self, group: Group, metrics: Metrics, timeout_seconds: float, warn_seconds: float
    ) -> None:
        self._group = group
        self._metrics = metrics
        self._timeout = timeout_seconds
        self._warn = warn_seconds
        self._stalled = 0

    def look(
        self, rounds: Iterable[Round[Arrived] | Stall], now: float
    ) -> list[tuple[int, LateError]]:
        """Warn once of each round that stalls; the collectives to fail, and why."""
        late = [round_ for round_ in rounds if now - round_.opened >= self._warn]
        self._count(len(late))
        overdue = []
        for round_ in late:
            waited = now - round_.opened
            text = f"{round_} has waited {waited:.1f} s for {self._whom(round_)}"
            if not round_.warned:
                round_.warned = True
                log.warning("generation %s: %s", self._group.picture.generation[:8], text)
            grace = 0.0 if round_.missing else PEER_GRACE_SECONDS
            if waited > self._timeout + grace:
                error = LateError(f"{text}; the timeout is {self._timeout:g} s")
                overdue.append((round_.sequence, error))
        return overdue

    def close(self) -> None:
        """Nothing stalls here any more."""
        self._count(0)

    def _count(self, stalled: int) -> None:
        self._metrics.stalled_rounds.inc(stalled - self._stalled)
        self._stalled = stalled

    def _whom(self, round_: Round[Arrived] | Stall) -> str:
        if round_.missing:
            return self._group.describe(round_.missing)
        return "; ".join(map(self._group.picture.describe, self._group.peers))
