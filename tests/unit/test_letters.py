"""Outboxes and inboxes of several ranks, over lines that delay; daemons' books between them."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import LostError, MismatchError, RoundTimeoutError
from gradwire._inbox import Inbox
from gradwire._letters import NEVER, Effect, Ended, Receiving, Say, Sending
from gradwire._outbox import Outbox
from gradwire_proto.letters import MOST_COMING, MOST_LETTERS, MOST_SMALL_BYTES, PAGES
from gradwire_server.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire_proto.v1 import aggregator_pb2 as pb

RANKS = 3
PAGE = 20_000
SMALL, LARGE = 100, 200_000
SIZES = (0, 1, SMALL, 1 << 16, (1 << 16) + 1, LARGE)


@dataclass
class Rank:
    number: int
    outbox: Outbox = field(init=False)
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.number, PAGE)
        self.inbox = Inbox(self.number, RANKS)

    def hear(self, note: pb.Note, payload: memoryview) -> list[Effect]:
        match note.WhichOneof("kind"):
            case "offer":
                return self.inbox.offer(note, payload)
            case "page":
                return self.inbox.page(note, payload)
            case "receipt":
                return self.outbox.receipt(note.source, note.number, note.receipt.size)
            case "withdrawal":
                return self.inbox.withdrawn(note)
            case _:
                return self.outbox.refused(note.source, note.number, note.refusal.failure)


class World:
    """Ranks with a line between each two; a note passes the books of two daemons."""

    def __init__(self, seed: int = 0) -> None:
        self.ranks = [Rank(number) for number in range(RANKS)]
        self.lines: dict[tuple[int, int], deque[tuple[pb.Note, memoryview]]] = {}
        self.ended: dict[Sending | Receiving, Exception | None] = {}
        self.said: defaultdict[str, int] = defaultdict(int)
        self._near, self._far = Ledger(PAGE), Ledger(PAGE)
        self._random = random.Random(seed)  # noqa: S311 - delays, not a secret

    def send(
        self, source: int, target: int, tag: int, data: bytes, deadline: float = NEVER
    ) -> Sending:
        sending = Sending(target, tag, memoryview(data), 5.0, deadline)
        self.carry_out(self.ranks[source].outbox.send(sending))
        return sending

    def receive(
        self, rank: int, source: int | None, tag: int, size: int, deadline: float = NEVER
    ) -> Receiving:
        place = Receiving(source, tag, memoryview(bytearray(size)), 5.0, deadline)
        self.carry_out(self.ranks[rank].inbox.receive(place))
        return place

    def carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ended):
                assert effect.what not in self.ended
                self.ended[effect.what] = effect.error
                continue
            note, payload = effect.note, memoryview(bytes(effect.payload))
            self.said[str(note.WhichOneof("kind"))] += 1
            if self._near.enter(note, payload.nbytes):
                line = self.lines.setdefault((note.source, note.target), deque())
                line.append((note, payload))

    def deliver(self) -> bool:
        """One note of one line; False where there is none."""
        busy = [ends for ends, line in self.lines.items() if line]
        if not busy:
            return False
        ends = self._random.choice(busy)
        note, payload = self.lines[ends].popleft()
        if self._far.enter(note, payload.nbytes):
            self.carry_out(self.ranks[ends[1]].hear(note, payload))
        return True

    def settle(self) -> None:
        while self.deliver():
            pass

    def expire(self, now: float) -> None:
        for rank in self.ranks:
            self.carry_out([*rank.outbox.expire(now), *rank.inbox.expire(now)])

    def depart(self, gone: int) -> None:
        for rank in self.ranks[:gone] + self.ranks[gone + 1 :]:
            self.carry_out([*rank.outbox.depart(gone), *rank.inbox.depart(gone)])


def content(number: int, size: int) -> bytes:
    return bytes([number % 251]) * size


def ranks_of(pair: int) -> tuple[int, int]:
    source, step = divmod(pair, RANKS - 1)
    return source, (source + 1 + step) % RANKS


Act = tuple[bool, int, int, int, int]
ACTS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, RANKS * (RANKS - 1) - 1),
        st.integers(-1, 1),
        st.sampled_from(SIZES),
        st.integers(0, 6),
    ),
    max_size=60,
)


@given(acts=ACTS, seed=st.integers(0, 1000))
def test_the_nth_letter_fills_the_nth_place(acts: list[Act], seed: int) -> None:
    world = World(seed)
    letters: defaultdict[tuple[int, int], list[Sending]] = defaultdict(list)
    places: defaultdict[tuple[int, int], list[Receiving]] = defaultdict(list)
    for number, (sends, pair, tag, size, steps) in enumerate(acts):
        source, target = ranks_of(pair)
        if sends:
            letter = world.send(source, target, tag, content(number, size))
            letters[pair, tag].append(letter)
        else:
            places[pair, tag].append(world.receive(target, source, tag, size))
        for _ in range(steps):
            world.deliver()
    world.settle()
    matched = 0
    for key in letters:
        for letter, place in zip(letters[key], places[key], strict=False):
            matched += 2
            if letter.data.nbytes == place.data.nbytes:
                assert (world.ended[letter], world.ended[place]) == (None, None)
                assert place.data == letter.data
            else:
                assert isinstance(world.ended[letter], MismatchError)
                assert str(world.ended[letter]) == str(world.ended[place])
    assert len(world.ended) == matched


def from_anyone(
    acts: list[Act], seed: int
) -> tuple[dict[tuple[int, int], list[bytes]], list[Receiving]]:
    """What ranks 1 and 2 send to rank 0, by rank and tag, and its places for it."""
    world = World(seed)
    sent: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    places: list[Receiving] = []
    for number, (sends, pair, tag, _, steps) in enumerate(acts):
        source, data = 1 + pair % 2, content(number, SMALL)
        if sends:
            world.send(source, 0, tag, data)
            sent[source, tag].append(data)
        else:
            places.append(world.receive(0, None, tag, SMALL))
        for _ in range(steps):
            world.deliver()
    world.settle()
    return sent, places


@given(acts=ACTS, seed=st.integers(0, 1000))
def test_from_anyone_each_letter_comes_once_and_in_its_senders_order(
    acts: list[Act], seed: int
) -> None:
    sent, places = from_anyone(acts, seed)
    got: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    for place in places:
        if place.source is not None:
            got[place.source, place.tag].append(bytes(place.data))
    for key, contents in got.items():
        assert contents == sent[key][: len(contents)]
    for tag in (-1, 0, 1):
        letters = sum(len(sent.get((source, tag), ())) for source in (1, 2))
        wanted = sum(place.tag == tag for place in places)
        assert sum(len(got[source, tag]) for source in (1, 2)) == min(letters, wanted)


@given(acts=ACTS, seed=st.integers(0, 1000))
def test_nothing_that_is_given_up_breaks_the_rules(acts: list[Act], seed: int) -> None:
    world = World(seed)
    for number, (sends, pair, tag, size, steps) in enumerate(acts):
        source, target = ranks_of(pair)
        deadline = float(number + steps)
        if sends:
            world.send(source, target, tag, content(number, size), deadline)
        else:
            world.receive(target, None if steps % 2 else source, tag, size, deadline)
        for _ in range(steps):
            world.deliver()
        world.expire(float(number))
    world.settle()
    world.expire(float("inf"))
    world.settle()
    errors = [error for error in world.ended.values() if error is not None]
    assert len(world.ended) == len(acts)
    assert all(isinstance(error, (RoundTimeoutError, MismatchError)) for error in errors)


def test_a_large_letter_waits_for_a_place_and_a_small_one_comes_with_its_offer() -> None:
    world = World()
    world.send(0, 1, 0, content(1, SMALL))
    world.send(0, 1, 0, content(2, LARGE))
    world.settle()
    assert dict(world.said) == {"offer": 2}
    world.receive(1, 0, 0, SMALL)
    world.receive(1, 0, 0, LARGE)
    world.settle()
    pages = LARGE // PAGE
    assert dict(world.said) == {"offer": 2, "receipt": 2 + pages, "page": pages}


def test_only_so_many_pages_are_under_way_to_one_rank() -> None:
    world = World()
    for _ in range(3):
        world.send(0, 1, 0, content(1, LARGE))
        world.receive(1, 0, 0, LARGE)
    most = 0
    while world.deliver():
        flying = sum(payload.nbytes for _, payload in world.lines[0, 1])
        most = max(most, flying)
    assert most == PAGES * PAGE
    assert list(world.ended.values()) == [None] * 6


def test_a_sender_offers_so_many_letters_and_so_many_bytes_at_most() -> None:
    world = World()
    data = content(1, SMALL)
    letters = [world.send(0, 1, 0, data) for _ in range(MOST_LETTERS + 5)]
    world.settle()
    assert world.said["offer"] == MOST_LETTERS
    for _ in letters:
        world.receive(1, 0, 0, SMALL)
    world.settle()
    assert [world.ended[letter] for letter in letters] == [None] * len(letters)
    world = World()
    fat = content(1, 1 << 16)
    for _ in range(10):
        world.send(0, 1, 0, fat)
    assert sum(payload.nbytes for _, payload in world.lines[0, 1]) == MOST_SMALL_BYTES


def test_a_rank_has_so_many_letters_coming_at_once() -> None:
    world = World()
    for number in range(MOST_COMING + 3):
        world.send(0, 1, number, content(number, LARGE))
        world.receive(1, 0, number, LARGE)
    while world.lines[0, 1]:
        note, payload = world.lines[0, 1].popleft()
        world.carry_out(world.ranks[1].hear(note, payload))
    assert world.said["receipt"] == MOST_COMING


def test_who_is_late_says_whom_it_waited_for() -> None:
    world = World()
    letter = world.send(0, 1, 3, content(1, SMALL), deadline=1.0)
    place = world.receive(2, 1, 4, SMALL, deadline=1.0)
    anyone = world.receive(2, None, 5, SMALL, deadline=1.0)
    world.expire(0.9)
    assert not world.ended
    world.expire(1.0)
    texts = [str(world.ended[each]) for each in (letter, place, anyone)]
    assert texts == [
        "rank 0 waited 5 s for rank 1 to receive its message with tag 3 (100 bytes)",
        "rank 2 waited 5 s for a message with tag 4 (100 bytes) from rank 1",
        "rank 2 waited 5 s for a message with tag 5 (100 bytes) from any rank",
    ]


def test_a_receiver_that_gives_up_half_way_tells_the_sender_and_leaves_its_tensor_alone() -> (
    None
):
    world = World()
    letter = world.send(0, 1, 3, content(1, LARGE))
    place = world.receive(1, 0, 3, LARGE, deadline=1.0)
    while place.received == 0:
        world.deliver()
    world.expire(1.0)
    held = bytes(place.data)
    world.settle()
    assert isinstance(world.ended[letter], RoundTimeoutError)
    assert str(world.ended[letter]) == str(world.ended[place])
    assert bytes(place.data) == held


def test_a_sender_that_gives_up_half_way_tells_the_receiver() -> None:
    world = World()
    letter = world.send(0, 1, 3, content(1, LARGE), deadline=1.0)
    place = world.receive(1, None, 3, LARGE)
    while place.received == 0:
        world.deliver()
    world.expire(1.0)
    world.settle()
    assert isinstance(world.ended[place], RoundTimeoutError)
    assert str(world.ended[letter]) == str(world.ended[place])


def test_a_letter_that_is_withdrawn_fills_no_place() -> None:
    world = World()
    world.send(0, 1, 3, content(1, SMALL), deadline=1.0)
    world.send(0, 1, 3, content(2, SMALL))
    world.settle()
    world.expire(1.0)
    world.settle()
    place = world.receive(1, 0, 3, SMALL)
    assert bytes(place.data) == content(2, SMALL)


def test_a_mismatch_names_both_ranks_the_tag_and_the_sizes() -> None:
    world = World()
    letter, place = world.send(0, 1, 3, content(1, 8)), world.receive(1, None, 3, 16)
    world.settle()
    expected = "rank 0 sent 8 bytes with tag 3, and rank 1 expected 16"
    assert (str(world.ended[letter]), str(world.ended[place])) == (expected, expected)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_who_has_left_is_not_waited_for(size: int) -> None:
    world = World()
    letter = world.send(0, 1, 0, content(1, size))
    place, anyone = world.receive(0, 1, 0, size), world.receive(0, None, 1, size)
    world.depart(1)
    assert str(world.ended[letter]).startswith("rank 1 has left the job; the message with tag")
    assert str(world.ended[place]).startswith("rank 1 has left the job; rank 0 waited")
    late, in_vain = world.send(0, 1, 0, content(1, size)), world.receive(0, 1, 0, size)
    assert isinstance(world.ended[late], LostError)
    assert isinstance(world.ended[in_vain], LostError)
    assert anyone not in world.ended
    world.send(2, 0, 1, content(2, size))
    world.settle()
    assert (world.ended[anyone], anyone.source) == (None, 2)
    world.depart(2)
    last = world.receive(0, None, 1, size)
    assert str(world.ended[last]).startswith("every other rank has left the job")


def test_a_letter_that_stops_half_way_since_its_sender_left_fails() -> None:
    world = World()
    world.send(1, 0, 0, content(1, LARGE))
    place = world.receive(0, None, 0, LARGE)
    while place.received == 0:
        world.deliver()
    world.depart(1)
    assert isinstance(world.ended[place], LostError)


def test_at_the_end_everything_open_is_given_back() -> None:
    world = World()
    letters = [world.send(0, 1, 0, content(1, size)) for size in (SMALL, LARGE)]
    places = [world.receive(0, source, 0, SMALL) for source in (1, None)]
    rank = world.ranks[0]
    assert (rank.outbox.end(), rank.inbox.end()) == (letters, places)
    assert (rank.outbox.deadline, rank.inbox.deadline) == (NEVER, NEVER)


def test_a_page_that_has_no_place_is_refused() -> None:
    world = World()
    world.send(0, 1, 0, content(1, LARGE))
    world.receive(1, 0, 0, LARGE)
    while not (world.lines[0, 1] and world.lines[0, 1][0][0].HasField("page")):
        world.deliver()
    note, payload = world.lines[0, 1].popleft()
    note.page.offset = 7
    with pytest.raises(ValueError, match="expected a page at 0, got 7"):
        world.ranks[1].hear(note, payload)


def test_what_is_said_is_a_note_and_its_payload() -> None:
    (effect,) = Outbox(0, PAGE).send(Sending(1, 2, memoryview(b"abc"), 1.0, NEVER))
    assert isinstance(effect, Say)
    assert (effect.note.number, bytes(effect.payload)) == (1, b"abc")
