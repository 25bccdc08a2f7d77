"""What a schedule says and hears: frames in, effects out. No bytes, no I/O, no clock.

A reducer is one node's part in the reduction of one chunk. Its engine holds the node's own sum
of the chunk, cut into shares, and the payload of every frame that arrived; the reducer says
what to do with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Frame:
    """A share that arrived: from which node, at which hop of the schedule."""

    source: int
    step: int
    share: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a share, as it is now, to a node."""

    target: int
    step: int
    share: int


@dataclass(frozen=True, slots=True)
class Add:
    """Add a frame's payload, which may have arrived earlier, to its share."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Fold:
    """Add up a share in the order of the nodes: these frames', one of each other node, and this
    node's own in its place among them.

    What is being sent of the share stays as it was.
    """

    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The share holds everybody's sum: divide it, and turn it into the result's type."""

    share: int


@dataclass(frozen=True, slots=True)
class Store:
    """A frame's payload is the final share: put it in the share's place."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Done:
    """All shares are final, and all that others need from this node has been said."""


Effect: TypeAlias = Send | Add | Fold | Finish | Store | Done


class Reducer(Protocol):
    """One node's part in the reduction of one chunk.

    The engine applies effects in order. Frames from one source arrive in the order sent; frames
    from different sources in any order. Whatever the order, every share is summed in the same
    order, so that a second run gives the same bits.
    """

    @property
    def shares(self) -> int:
        """Into how many shares the chunk is cut; the same on all nodes."""
        ...

    def start(self) -> list[Effect]:
        """What to do once the node's own sum is there."""
        ...

    def receive(self, frame: Frame) -> list[Effect]:
        """What to do now that a frame is here. Raises ProtocolError where it has no place."""
        ...


def check_place(node: int, nodes: int) -> None:
    """Refuse a node that is outside its job."""
    if not 0 <= node < nodes:
        raise ValueError(f"node {node} is outside a job of {nodes} nodes")
