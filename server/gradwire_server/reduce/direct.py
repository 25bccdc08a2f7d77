"""Everybody to everybody: node i adds up share i, then hands it out.

The bytes of the ring in two hops instead of 2(M-1), at the price of M-1 links at a time; and
every value crosses the wire once on the way in and once on the way out, so that a lossy wire
rounds it twice however many nodes there are. Known as all-to-all reduce-scatter and all-gather;
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
(2005).
"""

from __future__ import annotations

from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.effects import (
    Add,
    Done,
    Effect,
    Finish,
    Frame,
    Send,
    Store,
    check_place,
)

_SCATTER, _GATHER = 0, 1


class Direct:
    """Share i belongs to node i, which sums it in the order i, i+1, ... around the nodes."""

    def __init__(self, node: int, nodes: int) -> None:
        check_place(node, nodes)
        self._node = node
        self._others = [(node + distance) % nodes for distance in range(1, nodes)]
        self._unadded = list(self._others)
        self._unstored = set(self._others)
        self._waiting: dict[int, Frame] = {}

    @property
    def shares(self) -> int:
        """One a node."""
        return len(self._others) + 1

    def start(self) -> list[Effect]:
        """Send every other node its share."""
        if not self._others:
            return [Finish(0), Done()]
        return [Send(other, _SCATTER, other) for other in self._others]

    def receive(self, frame: Frame) -> list[Effect]:
        """A partial of this node's share, or another node's finished share."""
        if frame.step == _SCATTER and frame.share == self._node:
            return self._scattered(frame)
        if frame.step == _GATHER and frame.share == frame.source:
            return self._gathered(frame)
        raise ProtocolError(
            f"direct node {self._node} expected its own share or the sender's, got {frame}"
        )

    def _scattered(self, frame: Frame) -> list[Effect]:
        if frame.source not in self._unadded or frame.source in self._waiting:
            raise ProtocolError(
                f"direct node {self._node} expected partials from {self._unadded}, got {frame}"
            )
        self._waiting[frame.source] = frame
        effects: list[Effect] = []
        while self._unadded and self._unadded[0] in self._waiting:
            effects.append(Add(self._waiting.pop(self._unadded.pop(0))))
        if self._unadded:
            return effects
        gather = [Send(other, _GATHER, self._node) for other in self._others]
        return [*effects, Finish(self._node), *gather, *self._ending()]

    def _gathered(self, frame: Frame) -> list[Effect]:
        if frame.source not in self._unstored:
            raise ProtocolError(
                f"direct node {self._node} expected results from {sorted(self._unstored)},"
                f" got {frame}"
            )
        self._unstored.remove(frame.source)
        return [Store(frame), *self._ending()]

    def _ending(self) -> list[Effect]:
        return [] if self._unadded or self._unstored else [Done()]
