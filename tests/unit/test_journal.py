"""Whatever is damaged on the way, every frame arrives once and in order, or the lane ends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.errors import CorruptedError, ProtocolError
from gradwire_server.transport import journal as journals
from gradwire_server.transport.journal import (
    FRAME_BYTES,
    KEPT_BYTES,
    MOST_DAMAGED,
    MOST_REPEATS,
    TELL_BYTES,
    Journal,
    Tally,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Frame: TypeAlias = tuple[int, int, int]
"""Index, heard, and what it is to say: bytes of the frame that is kept are just its number."""

Damages: TypeAlias = "Callable[[int, int, Frame | Tally], bool]"
"""Whether it does: which message of the talk it is, from 1, whose, and what it says."""

MOST_STEPS = 10_000
"""More than any of these talks takes."""


@dataclass
class Side:
    """Does with a journal what a lane does."""

    way: deque[Frame | Tally | None]
    """What was written and has not arrived; None is what was damaged."""
    journal: Journal = field(default_factory=Journal)
    queue: deque[int] = field(default_factory=deque)
    frames: list[Frame] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)

    def next(self) -> Frame | Tally | None:
        """What is written now, if anything."""
        if self.journal.due:
            return self.journal.tally()
        if self.journal.behind:
            return self.frames[int(self.journal.repeat())]
        if not self.queue or self.journal.full:
            return None
        index, heard = self.journal.stamp()
        self.journal.keep(b"%d" % len(self.frames))
        self.frames.append((index, heard, self.queue.popleft()))
        return self.frames[-1]

    def hear(self, message: Frame | Tally | None) -> None:
        match message:
            case None:
                self.journal.hear_damaged("a frame")
            case Tally():
                self.journal.hear_tally(message)
            case index, heard, said:
                if self.journal.hear(index, heard, 1):
                    self.heard.append(said)


class Talk:
    """Two sides, what is on its way between them, and somebody who damages some of it."""

    def __init__(self, damages: Damages) -> None:
        self.ways: tuple[deque[Frame | Tally | None], ...] = (deque(), deque())
        self.sides = [Side(self.ways[0]), Side(self.ways[1])]
        self.damages = damages
        self.written = 0

    def write(self, side: int) -> bool:
        """Whether there was something."""
        message = self.sides[side].next()
        if message is None:
            return False
        self.written += 1
        self.ways[side].append(None if self.damages(self.written, side, message) else message)
        return True

    def arrive(self, side: int) -> bool:
        """Whether there was something on the way to it."""
        if not self.ways[1 - side]:
            return False
        self.sides[side].hear(self.ways[1 - side].popleft())
        return True

    def tell(self, side: int) -> bool:
        """The time after which a side tells what it heard has passed."""
        if not self.sides[side].journal.untold:
            return False
        self.sides[side].journal.tell()
        return True

    def cut(self, draw: random.Random) -> None:
        """Another stream takes the place of this one; what was on the way is gone.

        The hello of one side may have been written some time before: then it is not the newest.
        """
        stale = self.sides[0].journal.heard_index
        for _ in range(draw.randrange(4)):
            self.arrive(draw.randrange(2))
        for way in self.ways:
            way.clear()
        self.sides[0].journal.resume(self.sides[1].journal.heard_index)
        self.sides[1].journal.resume(stale)

    def end(self) -> None:
        """Go on until nothing happens any more."""
        acts = (self.write, self.arrive, self.tell)
        for _ in range(MOST_STEPS):
            if not sum(act(side) for act in acts for side in (0, 1)):
                return
        raise AssertionError("they talk without end")


def both_heard(talk: Talk, *said: range) -> None:
    one, other = talk.sides
    assert (other.heard, one.heard) == (list(said[0]), list(said[1]))
    assert one.journal.kept_bytes == other.journal.kept_bytes == 0


def never(*_: object) -> bool:
    return False


def only(*numbers: int) -> Damages:
    return lambda number, *_: number in numbers


def short_talk(damages: Damages) -> Talk:
    """Some frames each way, in bursts and in turns; then one says something more."""
    talk = Talk(damages)
    talk.sides[0].queue.extend(range(5))
    talk.sides[1].queue.extend(range(3))
    for side, act in [(0, talk.write), (0, talk.write), (1, talk.arrive), (1, talk.write)] * 2:
        act(side)
    talk.end()
    talk.sides[0].queue.append(5)
    talk.end()
    return talk


LENGTH = short_talk(never).written


def test_what_is_not_damaged_is_sent_once() -> None:
    talk = short_talk(never)
    both_heard(talk, range(6), range(3))
    assert len(talk.sides[0].frames) + len(talk.sides[1].frames) == 9


@pytest.mark.case("M29")
def test_any_one_message_or_two_may_be_damaged_tallies_too() -> None:
    # One that is damaged brings some more, which may be the second.
    for damaged in combinations(range(1, LENGTH + 12), 2):
        both_heard(short_talk(only(*damaged)), range(6), range(3))


@pytest.mark.case("M29")
def test_a_frame_that_follows_a_damaged_tally_does_not_hide_it() -> None:
    talk = Talk(only(1, 2))
    one, other = talk.sides
    other.queue.append(0)
    talk.write(1)
    talk.arrive(0)
    talk.write(0)
    assert list(talk.ways[0]) == [None], "its tally is damaged, too"
    one.queue.append(0)
    talk.write(0)
    talk.arrive(1)
    talk.arrive(1)
    talk.end()
    both_heard(talk, range(1), range(1))


@pytest.mark.case("M29")
@given(
    st.lists(st.sampled_from(("say", "write", "arrive", "tell")), max_size=120),
    st.randoms(use_true_random=False),
    st.sampled_from((0.02, 0.2, 0.5)),
)
def test_every_frame_arrives_once_and_in_order_whatever_is_damaged(
    acts: list[str], draw: random.Random, rate: float
) -> None:
    in_a_row, budget = [0, 0], MOST_REPEATS // 2

    def damages(_number: int, side: int, _: object) -> bool:
        nonlocal budget
        more = budget > 0 and in_a_row[side] < MOST_DAMAGED - 1 and draw.random() < rate
        in_a_row[side] = in_a_row[side] + 1 if more else 0
        budget -= more
        return more

    talk = Talk(damages)
    said = [0, 0]
    for act in acts:
        side = draw.randrange(2)
        if act == "say":
            talk.sides[side].queue.append(said[side])
            said[side] += 1
        else:
            getattr(talk, act)(side)
    talk.end()
    both_heard(talk, *map(range, said))


@given(
    st.lists(st.sampled_from(("say", "say", "write", "write", "arrive", "tell", "cut"))),
    st.randoms(use_true_random=False),
    st.sampled_from((0.0, 0.2)),
    st.sampled_from((1, KEPT_BYTES)),
)
def test_every_frame_arrives_once_and_in_order_however_often_the_stream_is_cut(
    acts: list[str], draw: random.Random, rate: float, kept: int
) -> None:
    budget = MOST_DAMAGED - 1

    def damages(*_: object) -> bool:
        nonlocal budget
        more = budget > 0 and draw.random() < rate
        budget -= more
        return more

    talk, said = Talk(damages), [0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "KEPT_BYTES", kept)
        for act in acts:
            side = draw.randrange(2)
            if act == "cut":
                talk.cut(draw)
            elif act == "say":
                talk.sides[side].queue.append(said[side])
                said[side] += 1
            else:
                getattr(talk, act)(side)
        talk.end()
    both_heard(talk, *map(range, said))


def test_what_the_other_side_heard_is_not_written_again_where_a_stream_is_cut() -> None:
    talk = Talk(never)
    one, other = talk.sides
    one.queue.extend(range(6))
    for _ in range(6):
        talk.write(0)
    for _ in range(4):
        talk.arrive(1)
    talk.ways[0].clear()
    one.journal.resume(other.journal.heard_index)
    assert [one.next(), one.next(), one.next()] == [(5, 0, 4), (6, 0, 5), None]


def test_who_heard_on_an_old_stream_what_was_never_sent_breaks_the_rules() -> None:
    journal = Journal()
    journal.stamp()
    journal.keep(b"")
    with pytest.raises(ProtocolError, match="it heard frame 2, and 1 was the last"):
        journal.resume(2)


@pytest.mark.case("M29")
def test_it_ends_where_everything_is_damaged() -> None:
    with pytest.raises(CorruptedError, match=f"way from it, {MOST_DAMAGED} frames in a row"):
        short_talk(lambda *_: True)


def test_it_ends_where_one_frame_is_damaged_each_time() -> None:
    talk = Talk(lambda _number, _side, message: message == (2, 0, 1))
    talk.sides[0].queue.extend(range(3))
    with pytest.raises(CorruptedError, match="frame 2 more than"):
        talk.end()
    assert talk.sides[1].heard == [0]


@pytest.mark.parametrize("size", [0, TELL_BYTES // 4], ids=["small", "large"])
def test_what_was_heard_is_told_after_so_many_frames_or_bytes(size: int) -> None:
    journal, frames = Journal(), -(-TELL_BYTES // (size + FRAME_BYTES))
    for index in range(1, frames):
        assert journal.hear(index, 0, size)
    assert not journal.due
    journal.hear(frames, 0, size)
    assert journal.tally() == Tally(0, frames, again=False)
    assert not journal.due
    assert not journal.untold


def test_a_frame_tells_what_was_heard_too() -> None:
    journal = Journal()
    journal.hear(1, 0, 1)
    assert journal.untold
    assert journal.stamp() == (1, 1)
    assert not journal.untold


@pytest.mark.parametrize("frame", [b"x" * (KEPT_BYTES // 4), b""], ids=["large", "small"])
def test_no_more_is_kept_than_the_bound_allows_and_what_was_heard_is_not(frame: bytes) -> None:
    journal, size = Journal(), len(frame) + FRAME_BYTES
    for _ in range(-(-KEPT_BYTES // size)):
        assert not journal.full
        journal.stamp()
        journal.keep(frame)
    assert journal.full
    kept = journal.kept_bytes
    journal.hear_tally(Tally(0, 1, again=False))
    assert not journal.full
    assert journal.kept_bytes == kept - size


@pytest.mark.parametrize(
    ("index", "heard", "words"),
    [
        (0, 0, "expected frame 1, got 0"),
        (2, 0, "expected frame 1, got 2"),
        (1, 1, "it heard frame 1, and 0 was the last"),
    ],
)
def test_who_counts_otherwise_breaks_the_rules(index: int, heard: int, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        Journal().hear(index, heard, 1)
    tally = Tally(index, heard, again=False)
    if index:
        with pytest.raises(ProtocolError, match=r"it tallied|it heard"):
            Journal().hear_tally(tally)
