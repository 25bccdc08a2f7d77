"""The two sides of a lane, and what is on its way between them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from gradwire_server.transport.journal import Journal, Tally
from scenes.script import Scene, command

if TYPE_CHECKING:
    from collections.abc import Iterator

Frame: TypeAlias = tuple[int, int, str]
"""Index, heard, and what it says."""

SIDES = "ab"
MOST_TURNS = 200


@command(r"a lane between a and b")
class Journals(Scene):
    """A side writes one thing at a time: what is due first, as a lane does."""

    def __init__(self) -> None:
        self._journals = {side: Journal() for side in SIDES}
        self._unwritten: dict[str, deque[str]] = {side: deque() for side in SIDES}
        self._kept: dict[str, list[Frame]] = {side: [] for side in SIDES}
        self._ways: dict[str, deque[Frame | Tally]] = {side: deque() for side in SIDES}
        """What each has written and the other has not read."""
        self._last: dict[str, Frame | Tally] = {}

    @command(r"([ab]) says ([\w ]+)")
    def say(self, side: str, words: str) -> Iterator[str]:
        self._unwritten[side].extend(words.split())
        while (written := self._write(side)) is not None:
            yield written

    @command(r"([ab]) reads")
    def read(self, side: str) -> Iterator[str]:
        self._last[side] = message = self._ways[_other(side)].popleft()
        yield from self._hear(side, message)

    @command(r"([ab]) reads that again")
    def replay(self, side: str) -> Iterator[str]:
        yield from self._hear(side, self._last[side])

    @command(r"([ab]) reads the next two the wrong way round")
    def swap(self, side: str) -> Iterator[str]:
        way = self._ways[_other(side)]
        way[0], way[1] = way[1], way[0]
        yield from self.read(side)

    @command(r"([ab]) reads something damaged")
    def damage(self, side: str) -> Iterator[str]:
        self._ways[_other(side)].popleft()
        self._journals[side].hear_damaged("a frame")
        yield from self._answer(side)

    @command(r"([ab]) reads a tally: (\d+) sent, (\d+) heard")
    def forge(self, side: str, index: int, heard: int) -> Iterator[str]:
        yield from self._hear(side, Tally(index, heard, again=False))

    @command(r"([ab]) tells what it heard")
    def tell(self, side: str) -> Iterator[str]:
        self._journals[side].tell()
        yield from self._answer(side)

    @command(r"the rest arrives")
    def deliver_all(self) -> Iterator[str]:
        for _ in range(MOST_TURNS):
            reader = next((side for side in SIDES if self._ways[_other(side)]), None)
            if reader is None:
                return
            yield from self.read(reader)
        yield "it never ends"

    @command(r"what is kept\?")
    def kept(self) -> Iterator[str]:
        for side in SIDES:
            kept = "something" if self._journals[side].kept_bytes else "nothing"
            yield f"{side} keeps {kept}"

    def _hear(self, side: str, message: Frame | Tally) -> Iterator[str]:
        match message:
            case Tally():
                self._journals[side].hear_tally(message)
            case index, heard, words:
                taken = self._journals[side].hear(index, heard, 1)
                yield f"{side} {'takes' if taken else 'passes over'} {index}: {words}"
        yield from self._answer(side)

    def _answer(self, side: str) -> Iterator[str]:
        while (written := self._write(side)) is not None:
            yield written

    def _write(self, side: str) -> str | None:
        journal, way = self._journals[side], self._ways[side]
        if journal.due:
            tally = journal.tally()
            way.append(tally)
            asks = ", and asks again" if tally.again else ""
            return f"{side} tallies {tally.index} sent, {tally.heard} heard{asks}"
        if journal.behind:
            way.append(frame := self._kept[side][int(journal.repeat())])
            return f"{side} writes {frame[0]} again: {frame[2]}"
        if not self._unwritten[side] or journal.full:
            return None
        frame = (*journal.stamp(), self._unwritten[side].popleft())
        journal.keep(b"%d" % len(self._kept[side]))
        self._kept[side].append(frame)
        way.append(frame)
        return f"{side} writes {frame[0]}: {frame[2]} ({frame[1]} heard)"


def _other(side: str) -> str:
    return "b" if side == "a" else "a"
