"""What the engine asks of a link between nodes, and what it is told by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from gradwire_proto.nonfinite import Finding
    from gradwire_proto.v1 import aggregator_pb2, peer_pb2
    from gradwire_server.round import Key, Spec


@dataclass(frozen=True, slots=True)
class Part:
    """One share of one chunk, on its way: whole, in as many pieces as it travelled in.

    A piece ends between two elements. Who sends gives one.
    """

    key: Key
    schedule: peer_pb2.Schedule
    step: int
    share: int
    weight: float
    spec: Spec
    pieces: tuple[memoryview, ...]
    finding: Finding | None = None
    """Partial: what one of the ranks brought. Final: that it is not finite."""
    sent_ns: int = field(default=0, compare=False)
    """When the sender handed it to its link, by the sender's monotonic clock; 0: not known."""
    left_at: float | None = field(default=None, compare=False)
    """The same in seconds of this node's monotonic clock; None: not known."""
    came_at: float = field(default=0.0, compare=False)
    """When the last of it arrived, by this node's monotonic clock; 0: not known."""

    @property
    def size(self) -> int:
        """Bytes of the share."""
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Abort:
    """A collective, or with no sequence the whole job, has failed on the sending node."""

    sequence: int | None
    failure: aggregator_pb2.Failure


@dataclass(frozen=True, slots=True)
class Left:
    """A rank of the sending node has left after this many collectives."""

    rank: int
    sequences: int


Message: TypeAlias = Part | Abort | Left


class Receiver(Protocol):
    """Who is told what arrives. Called on the event loop; must not block."""

    def receive(self, source: int, message: Message) -> None:
        """A message from a node; its parts of one round come in the order of sending.

        Parts of different rounds, and other messages, may overtake one another.
        """
        ...

    def lost(self, source: int, reason: str) -> None:
        """A node's link broke for good, or never came up. Said once; nothing more comes."""
        ...

    def settled(self, source: int, before: Key) -> None:
        """A node has the results of all rounds before this one, or they have failed there."""
        ...

    def outrun(self, attempt: int) -> None:
        """A node is at a later attempt of the generation: this one is over."""
        ...


class PostReceiver(Receiver, Protocol):
    """Who is told of the ranks' letters, too."""

    def post(self, source: int, note: aggregator_pb2.Note, payload: memoryview) -> None:
        """A note from a node, in the order of sending.

        Raises ProtocolError where it breaks the rules; then the link is lost.
        """
        ...


class Transport(Protocol):
    """The links of one generation between one node and all others."""

    async def send(self, target: int, message: Message) -> None:
        """Deliver a message, and return once its payload may be reused.

        A caller that is cancelled may reuse the payload at once: the message then arrives
        either whole or not at all. Returns without sending where the link is lost;
        Receiver.lost says so.
        """
        ...

    def settle(self, before: Key) -> None:
        """Let all nodes know that this one has the results of all rounds before this one.

        With the next shares, or soon; called once a round, nearly.
        """
        ...

    async def close(self) -> None:
        """Send what was accepted, say goodbye, and end all links."""
        ...
