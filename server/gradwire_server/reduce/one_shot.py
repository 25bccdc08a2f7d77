"""Everybody tells everybody everything, and adds it all up by itself: one hop.

M-1 times the bytes of the chunk go out of every node, but nobody waits for a second message:
for chunks that cost their hops and not their bytes. Known as the one-shot all-reduce; a
recursive doubling (Thakur, Rabenseifner and Gropp, 2005) cut down to a single exchange.
"""

from __future__ import annotations

from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.effects import Done, Effect, Finish, Fold, Frame, Send, check_place


class OneShot:
    """The chunk is one share, summed in the order of the nodes, on all of them alike."""

    def __init__(self, node: int, nodes: int) -> None:
        check_place(node, nodes)
        self._node = node
        self._others = [(node + distance) % nodes for distance in range(1, nodes)]
        self._arrived: dict[int, Frame] = {}

    @property
    def shares(self) -> int:
        """All of it."""
        return 1

    def start(self) -> list[Effect]:
        """Send every other node the whole sum."""
        if not self._others:
            return [Finish(0), Done()]
        return [Send(other, 0, 0) for other in self._others]

    def receive(self, frame: Frame) -> list[Effect]:
        """Another node's sum; with the last of them, the end."""
        known = frame.source in self._others and frame.source not in self._arrived
        if not known or frame.step or frame.share:
            missing = sorted(set(self._others) - set(self._arrived))
            raise ProtocolError(
                f"one-shot node {self._node} expected the sums of {missing}, got {frame}"
            )
        self._arrived[frame.source] = frame
        if len(self._arrived) < len(self._others):
            return []
        in_order = tuple(self._arrived[source] for source in sorted(self._arrived))
        return [Fold(in_order), Finish(0), Done()]
