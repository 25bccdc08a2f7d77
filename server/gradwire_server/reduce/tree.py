"""Up a binary tree and down again: for chunks so small that hops cost more than bytes.

Every node but the root sends the whole chunk up once and gets it once: 2 log2(M) hops in all.
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

_UP, _DOWN = 0, 1


class Tree:
    """Node 0 is the root; the children of node i are 2i+1 and 2i+2.

    A node adds its children's sums to its own in the order of their numbers, then speaks to its
    parent; the root finishes and sends the result down.
    """

    def __init__(self, node: int, nodes: int) -> None:
        check_place(node, nodes)
        self._node = node
        self._parent = (node - 1) // 2 if node else None
        self._children = [child for child in (2 * node + 1, 2 * node + 2) if child < nodes]
        self._unadded = list(self._children)
        self._waiting: dict[int, Frame] = {}
        self._done = False

    @property
    def shares(self) -> int:
        """The chunk is not cut."""
        return 1

    def start(self) -> list[Effect]:
        """A leaf speaks at once; the others hear their children first."""
        return self._after_children()

    def receive(self, frame: Frame) -> list[Effect]:
        """A child's sum, or the result from the parent."""
        if frame == Frame(-1 if self._parent is None else self._parent, _DOWN, 0):
            return self._descend(frame)
        if frame.source not in self._unadded or frame.source in self._waiting:
            raise ProtocolError(f"{self._expectation()}, got {frame}")
        if (frame.step, frame.share) != (_UP, 0):
            raise ProtocolError(f"{self._expectation()}, got {frame}")
        self._waiting[frame.source] = frame
        return self._add_in_order()

    def _add_in_order(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._unadded and self._unadded[0] in self._waiting:
            effects.append(Add(self._waiting.pop(self._unadded.pop(0))))
        return effects + self._after_children()

    def _after_children(self) -> list[Effect]:
        if self._unadded:
            return []
        if self._parent is not None:
            return [Send(self._parent, _UP, 0)]
        self._done = True
        return [Finish(0), *self._to_children(), Done()]

    def _descend(self, frame: Frame) -> list[Effect]:
        if self._unadded or self._done:
            raise ProtocolError(f"{self._expectation()}, got {frame}")
        self._done = True
        return [Store(frame), *self._to_children(), Done()]

    def _to_children(self) -> list[Effect]:
        return [Send(child, _DOWN, 0) for child in self._children]

    def _expectation(self) -> str:
        if self._done:
            return f"tree node {self._node} is done and expected nothing"
        if self._unadded:
            return f"tree node {self._node} expected the sums of nodes {self._unadded}"
        return f"tree node {self._node} expected the result from node {self._parent}"
