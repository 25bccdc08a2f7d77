"""Where a round's time goes on this node, from the last local part to the result. Pure.

Times are of CLOCK_MONOTONIC, in nanoseconds. The stages are those of gradwire_proto.stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire_proto.stages import Stage


class Stopwatch:
    """One round's. What lies between two things that are timed is spent in the queue."""

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.spent: dict[Stage, int] = {}
        """Nanoseconds of each stage so far."""
        self.spans: list[tuple[Stage, int, int]] | None = None
        """The same, one by one, where somebody wants to draw them."""
        self._last = begun

    def lap(self, stage: Stage, begun: int, ended: int) -> None:
        """This has happened between these times, after all that was told of before."""
        begun = max(begun, self._last)
        if begun > self._last:
            self._add("queue", self._last, begun)
        if ended > begun:
            self._add(stage, begun, ended)
        self._last = max(begun, ended)

    def wait(self, begun: int, left: int | None, came: int, ended: int) -> None:
        """Between `begun` and `ended` nothing could be done but wait for what a peer sent.

        It left the peer, and came here, at these times; None where its clock is not known.
        """
        came = min(max(came, begun), ended)
        left = begun if left is None else min(max(left, begun), came)
        self.lap("wait_peers", begun, left)
        self.lap("wire", left, came)
        self.lap("queue", came, ended)

    def stop(self, ended: int) -> None:
        """The result is there."""
        self.lap("queue", ended, ended)

    @property
    def ended(self) -> int:
        """Up to when all is told of."""
        return self._last

    def _add(self, stage: Stage, begun: int, ended: int) -> None:
        self.spent[stage] = self.spent.get(stage, 0) + ended - begun
        if self.spans is not None:
            self.spans.append((stage, begun, ended))
