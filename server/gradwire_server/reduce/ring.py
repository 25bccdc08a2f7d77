"""The ring all-reduce: reduce-scatter, then all-gather, with the next neighbour only.

Every node sends 2(M-1)/M of the chunk, which is the least possible, in 2(M-1) hops. Patarasuk
and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
(2009).
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


class Ring:
    """The share received at step s is the one sent at step s+1.

    The first M-1 steps add, the others store. Share i is summed in the order i, i+1, ... around
    the ring, and finished by node i-1.
    """

    def __init__(self, node: int, nodes: int) -> None:
        check_place(node, nodes)
        self._node = node
        self._nodes = nodes
        self._step = 0

    @property
    def shares(self) -> int:
        """One a node."""
        return self._nodes

    def start(self) -> list[Effect]:
        """Send the share of this node's own number."""
        if self._nodes == 1:
            return [Finish(0), Done()]
        return [self._send(0, self._node)]

    def receive(self, frame: Frame) -> list[Effect]:
        """Add or store what came, and pass it on."""
        expected = self._expected()
        if frame != expected:
            raise ProtocolError(f"ring node {self._node} expected {expected}, got {frame}")
        self._step += 1
        adding = frame.step < self._nodes - 1
        effects: list[Effect] = [Add(frame) if adding else Store(frame)]
        if frame.step == self._nodes - 2:
            effects.append(Finish(frame.share))
        if self._step < self._last_step:
            effects.append(self._send(self._step, frame.share))
        else:
            effects.append(Done())
        return effects

    @property
    def _last_step(self) -> int:
        return 2 * (self._nodes - 1)

    def _expected(self) -> Frame | None:
        if self._step >= self._last_step:
            return None
        share = (self._node - self._step - 1) % self._nodes
        return Frame((self._node - 1) % self._nodes, self._step, share)

    def _send(self, step: int, share: int) -> Send:
        return Send((self._node + 1) % self._nodes, step, share)
