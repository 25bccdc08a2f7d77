"""The letters that a rank sends: which are offered, and which pages may go out. Pure."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from gradwire._errors import AggregationError, LostError, RoundTimeoutError
from gradwire._failure import error_of
from gradwire._letters import Effect, Ended, Say, Sending, earliest, failure
from gradwire_proto.letters import MOST_LETTERS, MOST_SMALL_BYTES, PAGES, SMALL_BYTES
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Correspondent:
    """The letters to one rank."""

    def __init__(self, rank: int, target: int, page_bytes: int) -> None:
        self._rank = rank
        self._target = target
        self._page_bytes = page_bytes
        self._waiting: deque[Sending] = deque()
        self._open: dict[int, Sending] = {}
        self._wanted: deque[int] = deque()
        """Those whose pages may go out."""
        self._offered = 0
        self._small_bytes = 0
        self._flying_bytes = 0

    def __iter__(self) -> Iterator[Sending]:
        return chain(self._open.values(), self._waiting)

    def send(self, sending: Sending) -> list[Effect]:
        self._waiting.append(sending)
        return list(self._offer())

    def receipt(self, number: int, size: int) -> list[Effect]:
        sending = self._open.get(number)
        if sending is None:
            return []
        if not sending.small:
            self._flying_bytes -= size - sending.received
        sending.received = size
        if size == sending.data.nbytes:
            self._close(number)
            return [Ended(sending), *self._offer(), *self._pages()]
        if not sending.sent:
            self._wanted.append(number)
        return list(self._pages())

    def end(self, number: int, error: AggregationError) -> list[Effect]:
        """A letter will not be taken."""
        sending = self._open.get(number)
        if sending is None:
            return []
        self._close(number)
        return [Ended(sending, error), *self._offer(), *self._pages()]

    def expire(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for sending in [each for each in self._waiting if each.deadline <= now]:
            self._waiting.remove(sending)
            effects.append(Ended(sending, self._late(sending)))
        for number, sending in list(self._open.items()):
            if sending.deadline <= now:
                error = self._late(sending)
                note = self._note(number)
                note.withdrawal.failure.CopyFrom(failure(pb.Failure.KIND_TIMEOUT, error))
                effects += [Say(note), *self.end(number, error)]
        return effects

    def _late(self, sending: Sending) -> RoundTimeoutError:
        return RoundTimeoutError(
            f"rank {self._rank} waited {sending.seconds:g} s for rank {self._target} to receive"
            f" its message with tag {sending.tag} ({sending.data.nbytes} bytes)"
        )

    def _offer(self) -> Iterator[Effect]:
        while self._waiting and len(self._open) < MOST_LETTERS:
            sending = self._waiting.popleft()
            size = sending.data.nbytes
            self._offered += 1
            self._open[self._offered] = sending
            note = self._note(self._offered)
            note.offer.tag, note.offer.size = sending.tag, size
            if size <= SMALL_BYTES and self._small_bytes + size <= MOST_SMALL_BYTES:
                sending.small, sending.sent = True, size
                self._small_bytes += size
                yield Say(note, sending.data)
            else:
                yield Say(note)

    def _pages(self) -> Iterator[Effect]:
        while self._wanted:
            number = self._wanted[0]
            sending = self._open[number]
            page = sending.data[sending.sent : sending.sent + self._page_bytes]
            if self._flying_bytes + page.nbytes > PAGES * self._page_bytes:
                return
            note = self._note(number)
            note.page.offset = sending.sent
            sending.sent += page.nbytes
            self._flying_bytes += page.nbytes
            if sending.sent == sending.data.nbytes:
                self._wanted.popleft()
            yield Say(note, page)

    def _close(self, number: int) -> None:
        sending = self._open.pop(number)
        if sending.small:
            self._small_bytes -= sending.data.nbytes
        else:
            self._flying_bytes -= sending.sent - sending.received
        if number in self._wanted:
            self._wanted.remove(number)

    def _note(self, number: int) -> pb.Note:
        return pb.Note(source=self._rank, target=self._target, number=number)


class Outbox:
    """All letters of one rank that were not taken yet; those to one rank go out in order."""

    def __init__(self, rank: int, page_bytes: int) -> None:
        self._rank = rank
        self._page_bytes = page_bytes
        self._to: dict[int, _Correspondent] = {}
        self._gone: set[int] = set()

    def send(self, sending: Sending) -> list[Effect]:
        """A new letter."""
        target = sending.target
        if target in self._gone:
            return [Ended(sending, self._left(sending))]
        if target not in self._to:
            self._to[target] = _Correspondent(self._rank, target, self._page_bytes)
        return self._to[target].send(sending)

    def receipt(self, source: int, number: int, size: int) -> list[Effect]:
        """A receiver has a place for a letter, and this many bytes of it."""
        return self._to[source].receipt(number, size) if source in self._to else []

    def refused(self, source: int, number: int, why: pb.Failure) -> list[Effect]:
        """A receiver does not take a letter, or the rest of it."""
        return self._to[source].end(number, error_of(why)) if source in self._to else []

    def depart(self, rank: int) -> list[Effect]:
        """A rank has left the job."""
        self._gone.add(rank)
        return [Ended(each, self._left(each)) for each in self._to.pop(rank, ())]

    def expire(self, now: float) -> list[Effect]:
        """Give up what is late."""
        return [effect for each in self._to.values() for effect in each.expire(now)]

    def end(self) -> list[Sending]:
        """All letters that were not taken; nothing comes of them any more."""
        left = [sending for each in self._to.values() for sending in each]
        self._to.clear()
        return left

    @property
    def deadline(self) -> float:
        """When the first letter is late."""
        return earliest(sending for each in self._to.values() for sending in each)

    def _left(self, sending: Sending) -> LostError:
        return LostError(
            f"rank {sending.target} has left the job; the message with tag {sending.tag} from"
            f" rank {self._rank} ({sending.data.nbytes} bytes) was not received"
        )
