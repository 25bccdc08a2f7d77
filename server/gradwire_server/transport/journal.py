"""What one side of a lane has sent, and what it has heard: how damaged frames come again. Pure.

Frames are counted, and taken in that order, each once. The sender keeps them until the other
side says that it has heard them, which it says in its own frames or, where it has none, in a
tally. Who gets a damaged frame says a tally that asks for all that it has not heard, and drops
what comes before that; who is asked writes it once more.

Tallies are not counted, and may be damaged, too. So every damaged frame, whatever it was, is
answered by a tally that asks, and every tally that asks by a tally. Then for every tally that
was damaged a later one arrives, unless too much is damaged; each says all there is to say, and
shows whether anything before it is missing. What does not ask is not answered, so this ends.

Where the stream under it breaks and another takes its place, each side says how far it has
heard, and writes what comes after that once more. What was on the old stream never comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire_server.errors import CorruptedError, ProtocolError

FRAME_BYTES = 8 << 10
"""A frame counts for so many beside its own, so that there is a bound to small ones, too."""

KEPT_BYTES = 32 << 20
"""Of frames that are kept; then nothing new is sent until some were heard. That is a node's
chunks in flight, so shares never wait for it."""

TELL_BYTES = 8 << 20
"""Heard since the other side was told: then it is, in a tally if need be."""

MOST_DAMAGED = 8
"""In a row, none whole between them."""

MOST_REPEATS = 32
"""The same frame is not asked for more often: something damages just that one."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a tally says; see peer.proto."""

    index: int
    heard: int
    again: bool


class Journal:
    """One side of one lane.

    The owner writes what `repeat` gives first, then new frames, each stamped and then kept;
    and a tally wherever one is due. It says `heard_index` on a new stream before all else, and
    does `resume` with what the other side says there.
    """

    def __init__(self) -> None:
        self.due = False
        """A tally ought to be written now."""
        self._kept: dict[int, bytes] = {}
        self._kept_bytes = 0
        self._first = 1
        """The oldest that is kept, or will be."""
        self._next = 1
        """The next new one."""
        self._cursor = 1
        """The next to be written: a new one, or one that is kept."""
        self._repeats = (0, 0)
        """Which frame was asked for last, and how often."""
        self._expected = 1
        self._missing = False
        """Something was damaged since the last frame that was expected."""
        self._damaged = 0
        self._asking = False
        """The next tally asks for what was not heard."""
        self._untold_bytes = 0

    # -- out

    @property
    def full(self) -> bool:
        """No new frame may be kept."""
        return self._kept_bytes >= KEPT_BYTES

    @property
    def kept_bytes(self) -> int:
        """For which counts what was not heard yet."""
        return self._kept_bytes

    @property
    def behind(self) -> bool:
        """Something is to be written again."""
        return self._cursor < self._next

    @property
    def all_heard(self) -> bool:
        """The other side has heard all that was sent."""
        return not self._kept

    def resume(self, heard: int) -> None:
        """Another stream took the old one's place, and there the other side has heard so much.

        Raises ProtocolError where it can't have. That it is less than it said before is no
        fault: it may have heard more from the old stream since it wrote that.
        """
        self._forget(heard)
        self._cursor = self._first
        self._missing = self._asking = self.due = False
        self._damaged = 0

    def stamp(self) -> tuple[int, int]:
        """The next new frame's index, and what it says was heard."""
        self._untold_bytes = 0
        return self._next, self._expected - 1

    def keep(self, frame: bytes) -> None:
        """The frame that was stamped is about to be written."""
        self._kept[self._next] = frame
        self._kept_bytes += len(frame) + FRAME_BYTES
        self._next += 1
        self._cursor = self._next

    def repeat(self) -> bytes:
        """What is to be written again, while there is something."""
        frame = self._kept[self._cursor]
        self._cursor += 1
        return frame

    def tally(self) -> Tally:
        """What is to be said now; then none is due."""
        said = Tally(self._cursor - 1, self._expected - 1, self._asking)
        self.due = self._asking = False
        self._untold_bytes = 0
        return said

    # -- in

    @property
    def heard_index(self) -> int:
        """Of the last frame that was heard."""
        return self._expected - 1

    @property
    def untold(self) -> bool:
        """Something was heard of which the other side was not told."""
        return self._untold_bytes > 0

    def hear(self, index: int, heard: int, size: int) -> bool:
        """A frame came whole; whether it is its turn. Raises ProtocolError."""
        self._damaged = 0
        if heard >= self._first:
            self._forget(heard)
        if index != self._expected:
            self._pass_over(index)
            return False
        self._expected += 1
        self._missing = False
        self._untold_bytes += size + FRAME_BYTES
        if self._untold_bytes >= TELL_BYTES:
            self.due = True
        return True

    def hear_tally(self, tally: Tally) -> None:
        """A tally came whole. Raises ProtocolError; CorruptedError where it is one too many."""
        self._damaged = 0
        if tally.heard >= self._first:
            self._forget(tally.heard)
        if tally.index >= self._expected:
            if not self._missing:
                raise ProtocolError(f"it tallied {tally.index}; {self._expected} has not come")
            self._asking = self.due = True
        if tally.again:
            self.due = True
            self._rewind()

    def tell(self) -> None:
        """Let the other side know what was heard."""
        self.due = True

    def hear_damaged(self, text: str) -> None:
        """Something came damaged. Raises CorruptedError where it is one too many."""
        self._damaged += 1
        if self._damaged >= MOST_DAMAGED:
            raise CorruptedError(
                f"data was damaged on the way from it, {self._damaged} frames in a row: {text}"
            )
        self._missing = self._asking = self.due = True

    def _pass_over(self, index: int) -> None:
        if index < 1 or (index > self._expected and not self._missing):
            raise ProtocolError(f"expected frame {self._expected}, got {index}")

    def _forget(self, heard: int) -> None:
        if heard >= self._next:
            raise ProtocolError(f"it heard frame {heard}, and {self._next - 1} was the last")
        while self._first <= heard:
            self._kept_bytes -= len(self._kept.pop(self._first)) + FRAME_BYTES
            self._first += 1
        if self._cursor < self._first:
            self._cursor = self._first

    def _rewind(self) -> None:
        self._cursor = self._first
        if not self._kept:
            return
        asked, times = self._repeats
        self._repeats = self._first, times + 1 if asked == self._first else 1
        if self._repeats[1] > MOST_REPEATS:
            raise CorruptedError(
                f"data was damaged on the way to it: it asked for frame {self._first} more than"
                f" {MOST_REPEATS} times"
            )
