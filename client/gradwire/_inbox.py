"""The letters that a rank receives: which one goes where, and which may come. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from gradwire._errors import AggregationError, LostError, MismatchError, RoundTimeoutError
from gradwire._failure import error_of
from gradwire._letters import Effect, Ended, Receiving, Say, earliest, failure
from gradwire_proto.letters import MOST_COMING
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

_Name: TypeAlias = tuple[int, int]
"""A letter: its sender and its number."""


@dataclass(frozen=True, slots=True)
class _Offered:
    """A letter that nobody has a place for yet."""

    name: _Name
    size: int
    payload: memoryview

    @property
    def source(self) -> int:
        return self.name[0]


class Inbox:
    """The letters to one rank.

    Those of one sender and tag are taken in the order of sending; who takes a letter from
    anyone gets the one that came first.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._others = set(range(world_size)) - {rank}
        """Ranks that have not left."""
        self._offers: defaultdict[int, deque[_Offered]] = defaultdict(deque)
        self._places: defaultdict[int, deque[Receiving]] = defaultdict(deque)
        """Both by tag, in the order in which they came; no two of them fit."""
        self._coming: dict[_Name, Receiving] = {}
        """Letters that come in pages."""
        self._held: deque[_Name] = deque()
        """Those of them whose sender was not told to begin."""

    # -- from this rank

    def receive(self, place: Receiving) -> list[Effect]:
        """A new place."""
        if self._cut_off(place):
            return [Ended(place, self._left(place))]
        offers = self._offers[place.tag]
        for offered in offers:
            if place.source in (None, offered.source):
                offers.remove(offered)
                self._tidy(place.tag)
                return list(self._fit(place, offered))
        self._places[place.tag].append(place)
        self._tidy(place.tag)
        return []

    def expire(self, now: float) -> list[Effect]:
        """Give up what is late."""
        effects: list[Effect] = []
        for place in [each for each in self._unfilled() if each.deadline <= now]:
            self._forget(place)
            effects.append(Ended(place, self._late(place)))
        for name, place in list(self._coming.items()):
            if place.deadline <= now:
                error = self._late(place)
                effects += [
                    self._refuse(name, pb.Failure.KIND_TIMEOUT, error),
                    *self._end(name, error),
                ]
        return effects

    def end(self) -> list[Receiving]:
        """All places that no letter fills; nothing comes into them any more."""
        left = [*self._unfilled(), *self._coming.values()]
        self._places.clear()
        self._coming.clear()
        self._offers.clear()
        return left

    @property
    def deadline(self) -> float:
        """When the first place is late."""
        return earliest(chain(self._unfilled(), self._coming.values()))

    # -- from the others

    def offer(self, note: pb.Note, payload: memoryview) -> list[Effect]:
        """Somebody has a letter for this rank."""
        tag = note.offer.tag
        offered = _Offered((note.source, note.number), note.offer.size, payload)
        for place in self._places.get(tag, ()):
            if place.source in (None, note.source):
                self._forget(place)
                return list(self._fit(place, offered))
        self._offers[tag].append(offered)
        return []

    def page(self, note: pb.Note, payload: memoryview) -> list[Effect]:
        """A part of a letter; it is of no use where that was given up.

        Raises ValueError where it has no place in the letter.
        """
        name = (note.source, note.number)
        place = self._coming.get(name)
        if place is None:
            return []
        if note.page.offset != place.received:
            raise ValueError(f"expected a page at {place.received}, got {note.page.offset}")
        place.data[place.received : place.received + payload.nbytes] = payload
        place.received += payload.nbytes
        receipt = self._receipt(name, place.received)
        return [receipt, *(self._end(name) if place.received == place.data.nbytes else ())]

    def withdrawn(self, note: pb.Note) -> list[Effect]:
        """A sender has given a letter up."""
        name = (note.source, note.number)
        for tag, offers in list(self._offers.items()):
            self._offers[tag] = deque(each for each in offers if each.name != name)
            self._tidy(tag)
        if name not in self._coming:
            return []
        return list(self._end(name, error_of(note.withdrawal.failure)))

    def depart(self, rank: int) -> list[Effect]:
        """A rank has left the job."""
        self._others.discard(rank)
        effects: list[Effect] = []
        for tag, offers in list(self._offers.items()):
            self._offers[tag] = deque(each for each in offers if each.source != rank)
            self._tidy(tag)
        for name, place in list(self._coming.items()):
            if name[0] == rank:
                effects += self._end(name, self._left(place))
        for place in [each for each in self._unfilled() if self._cut_off(each)]:
            self._forget(place)
            effects.append(Ended(place, self._left(place)))
        return effects

    # -- within

    def _fit(self, place: Receiving, offered: _Offered) -> Iterator[Effect]:
        """This letter goes into this place."""
        place.source = offered.source
        if offered.size != place.data.nbytes:
            error = MismatchError(
                f"rank {offered.source} sent {offered.size} bytes with tag {place.tag}, and"
                f" rank {self._rank} expected {place.data.nbytes}"
            )
            yield self._refuse(offered.name, pb.Failure.KIND_MISMATCH, error)
            yield Ended(place, error)
        elif offered.payload.nbytes == offered.size:
            place.data[:] = offered.payload
            yield self._receipt(offered.name, offered.size)
            yield Ended(place)
        else:
            self._coming[offered.name] = place
            self._held.append(offered.name)
            yield from self._begin()

    def _begin(self) -> Iterator[Effect]:
        while self._held and len(self._coming) - len(self._held) < MOST_COMING:
            yield self._receipt(self._held.popleft(), 0)

    def _end(self, name: _Name, error: AggregationError | None = None) -> Iterator[Effect]:
        """A letter that came in pages is complete, or comes no further."""
        place = self._coming.pop(name)
        if name in self._held:
            self._held.remove(name)
        yield Ended(place, error)
        yield from self._begin()

    def _unfilled(self) -> Iterator[Receiving]:
        return chain.from_iterable(self._places.values())

    def _forget(self, place: Receiving) -> None:
        self._places[place.tag].remove(place)
        self._tidy(place.tag)

    def _tidy(self, tag: int) -> None:
        """Tags come and go: keep nothing for those without a letter."""
        for shelf in (self._offers, self._places):
            if tag in shelf and not shelf[tag]:
                del shelf[tag]

    def _cut_off(self, place: Receiving) -> bool:
        """Whoever could fill it has left."""
        return not self._others if place.source is None else place.source not in self._others

    def _left(self, place: Receiving) -> LostError:
        who = "every other rank" if place.source is None else f"rank {place.source}"
        return LostError(
            f"{who} has left the job; rank {self._rank} waited for a message with tag"
            f" {place.tag}"
        )

    def _late(self, place: Receiving) -> RoundTimeoutError:
        who = "any rank" if place.source is None else f"rank {place.source}"
        return RoundTimeoutError(
            f"rank {self._rank} waited {place.seconds:g} s for a message with tag {place.tag}"
            f" ({place.data.nbytes} bytes) from {who}"
        )

    def _receipt(self, name: _Name, size: int) -> Say:
        note = self._note(name)
        note.receipt.size = size
        # An empty message within is left out unless it is named.
        note.receipt.SetInParent()
        return Say(note)

    def _refuse(self, name: _Name, kind: pb.Failure.Kind, error: Exception) -> Say:
        note = self._note(name)
        note.refusal.failure.CopyFrom(failure(kind, error))
        return Say(note)

    def _note(self, name: _Name) -> pb.Note:
        source, number = name
        return pb.Note(source=self._rank, target=source, number=number)
