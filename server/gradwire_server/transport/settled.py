"""Up to which round the two sides of a link have results. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_server.round import Key

if TYPE_CHECKING:
    from gradwire_proto.v1 import peer_pb2 as pb


class Told:
    """What is to be told of this side, and what the other side has told of itself."""

    def __init__(self) -> None:
        self.untold = 0
        """How often there was something new since the other side was told."""
        self._sequence = self._chunk = 0
        self._heard = (0, 0)

    @property
    def any(self) -> bool:
        """Whether there is something to tell."""
        return (self._sequence, self._chunk) > (0, 0)

    def settle(self, before: Key) -> bool:
        """This side has the results of all rounds before this one; whether that is news."""
        if (before.sequence, before.chunk) <= (self._sequence, self._chunk):
            return False
        self._sequence, self._chunk = before.sequence, before.chunk
        self.untold += 1
        return True

    def stamp(self, said: pb.Share | pb.Tally) -> None:
        """Tell it with something that is about to be written."""
        said.settled_sequence, said.settled_chunk = self._sequence, self._chunk
        self.untold = 0

    def hear(self, sequence: int, chunk: int) -> Key | None:
        """What the other side told, if it is more than before."""
        if (sequence, chunk) <= self._heard:
            return None
        self._heard = sequence, chunk
        return Key(sequence, chunk)
