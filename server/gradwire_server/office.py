"""Hands the ranks' letters on: to ranks of this node, and to the nodes of the others.

It never waits. What a rank has not read yet lies in its tray, which the ledger bounds.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.ledger import LONGEST_NOTE, Ledger, Pair, pair_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_server.group import Group


class Roads(Protocol):
    """The links to the other nodes."""

    def post(self, target: int, note: pb.Note, payload: memoryview) -> None:
        """Send a note to a node, after all that were sent to it before. Does not wait."""
        ...


class _Entry(NamedTuple):
    """Something for a rank to read; with no letter, it is the daemon's own word."""

    letter: tuple[Pair, int] | None
    is_offer: bool
    data: bytes


class Tray:
    """What one rank has yet to read. Here before the rank has opened its stream, too."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._offers: Counter[tuple[Pair, int]] = Counter()
        self._ready: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """The rank reads it."""
        return self._ready is not None

    def open(self, ready: Callable[[], None]) -> None:
        """From now on say when there is something."""
        self._ready = ready
        if self._entries:
            ready()

    def put(self, note: pb.Note, data: bytes) -> None:
        """Add a serialised PostResponse with this note.

        A letter that is withdrawn before the rank has read of it was never there: who withdraws
        and offers again can't fill a tray that nobody reads.
        """
        kind = note.WhichOneof("kind")
        letter = None if kind == "departure" else (pair_of(note), note.number)
        if kind == "withdrawal" and letter is not None and letter in self._offers:
            del self._offers[letter]
            self._entries = deque(each for each in self._entries if each.letter != letter)
            return
        if kind == "offer" and letter is not None:
            self._offers[letter] = 1
        self._entries.append(_Entry(letter, kind == "offer", data))
        if self._ready is not None:
            self._ready()

    def take(self) -> bytes | None:
        """What comes next; None where there is nothing."""
        if not self._entries:
            return None
        entry = self._entries.popleft()
        if entry.is_offer and entry.letter is not None:
            del self._offers[entry.letter]
        return entry.data


class Office:
    """The letters of one generation on one node. All methods are called on the event loop."""

    def __init__(self, group: Group, chunk_bytes: int) -> None:
        self._group = group
        self._ledger = Ledger(chunk_bytes)
        self._trays = {rank: Tray() for rank in group.local_ranks}
        self._nodes = {
            rank: node for node, each in enumerate(group.picture.nodes) for rank in each.ranks
        }
        self._gone: set[int] = set()
        self._roads: Roads | None = None

    def connect(self, roads: Roads) -> None:
        """Use these links."""
        self._roads = roads

    def tray(self, rank: int) -> Tray:
        """A local rank's. Raises ProtocolError where it has a stream, or has left."""
        tray = self._trays.get(rank)
        if tray is None or tray.is_open:
            raise ProtocolError(f"rank {rank} already has a stream of letters, or has left")
        return tray

    def send(self, rank: int, data: bytes) -> None:
        """A local rank says something. Raises ProtocolError where that breaks the rules."""
        try:
            request, payload = wire.split(data, pb.PostRequest)
        except ValueError as error:
            raise ProtocolError(f"this is no PostRequest: {error}") from None
        note = request.note
        if request.seat or len(data) - payload.nbytes > LONGEST_NOTE:
            raise ProtocolError(f"expected a note of {LONGEST_NOTE} bytes, and nothing else")
        if note.source != rank or note.target not in self._nodes or note.target == rank:
            raise ProtocolError(
                f"expected a note from rank {rank} to another, got one from rank"
                f" {note.source} to rank {note.target}"
            )
        if not self._enters(note, payload):
            return
        if note.target in self._trays:
            # The response is written like the request: no copy.
            self._deliver(note, data)
        elif self._roads is not None:
            self._roads.post(self._nodes[note.target], note, payload)

    def receive(self, node: int, note: pb.Note, payload: memoryview) -> None:
        """Another node hands a note on. Raises ProtocolError where that breaks the rules."""
        if self._nodes.get(note.source) != node or (
            self._nodes.get(note.target) != self._group.node
        ):
            raise ProtocolError(
                f"expected a note from a rank of node {node} to one of node"
                f" {self._group.node}, got one from rank {note.source} to rank {note.target}"
            )
        if self._enters(note, payload):
            self._deliver(note, _response(note, payload))

    def depart(self, rank: int) -> None:
        """A rank, local or not, has left: nobody need wait for its letters."""
        if rank in self._gone:
            return
        self._gone.add(rank)
        self._ledger.depart(rank)
        self._trays.pop(rank, None)
        note = pb.Note(source=rank, departure=pb.Departure())
        for target, tray in self._trays.items():
            note.target = target
            tray.put(note, _response(note, memoryview(b"")))

    def _enters(self, note: pb.Note, payload: memoryview) -> bool:
        """Whether it is of use to anybody."""
        if note.source in self._gone or note.target in self._gone:
            return False
        return self._ledger.enter(note, payload.nbytes)

    def _deliver(self, note: pb.Note, data: bytes) -> None:
        self._trays[note.target].put(note, data)


def _response(note: pb.Note, payload: memoryview) -> bytes:
    return wire.join(pb.PostResponse(note=note), payload)
