"""What some ranks have and others lack, when a job is taken up again: all end with the same."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire._collective import Collective
from gradwire._errors import LostError, RoundTimeoutError
from gradwire._order import reducing
from gradwire._recovery import Recovery
from gradwire._result import Result
from gradwire._stream import Streaming
from gradwire._tensor import bytes_of
from gradwire_proto.nonfinite import Finding
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradwire._carrier import Carrier

ELEMENTS, CHUNK_ELEMENTS, CHUNKS = 10, 4, 3
MOST = 6
"""Collectives that all ranks have handed in."""
LATE = pb.Failure(kind=pb.Failure.KIND_TIMEOUT, reason="rank 1 was late")


class Line:
    """See gradwire._channel.Line: to a daemon that says what the test wants."""

    daemon = "the daemon at nowhere"

    def __init__(self) -> None:
        self.said: deque[tuple[pb.ReduceResponse, memoryview]] = deque()

    def send(self, request: pb.ReduceRequest, payload: memoryview) -> None:
        pass

    def receive(self) -> tuple[pb.ReduceResponse, memoryview]:
        return self.said.popleft()

    def close(self) -> None:
        pass


class Seat:
    """See gradwire._recovery.Seat: at a daemon that knows where all ranks are."""

    def __init__(
        self, carrier: Carrier, own: pb.Progress, everybody: list[pb.Progress]
    ) -> None:
        self.attempt = 0
        self.carrier = carrier
        self.own = own
        self.everybody = everybody

    def rejoin(
        self, attempt: int, progress: pb.Progress, lost: LostError
    ) -> tuple[Carrier, list[pb.Progress]]:
        progress.rank = self.own.rank
        assert progress == self.own
        self.attempt = max(attempt, self.attempt + 1)
        return self.carrier, self.everybody


def value(number: int, chunk: int) -> float:
    """Of the result of a chunk."""
    return 100.0 * number + chunk + 1


def nothing(_: object, __: float) -> None:
    """Nobody waits."""


def streaming(rank: int = 0, slots: int = 32) -> tuple[Streaming, Line]:
    line = Line()
    return Streaming(line, rank, 4 * CHUNK_ELEMENTS, slots, resumes=True), line


@dataclass
class Rank:
    """One rank, which has the results of all chunks before one, and then loses its daemon."""

    rank: int
    at: tuple[int, int]
    failed: tuple[int, ...] = ()
    findings: Mapping[tuple[int, int], Finding] = field(default_factory=dict)
    slots: int = 32

    def __post_init__(self) -> None:
        self.tensors = {number: torch.zeros(ELEMENTS) for number in range(MOST)}
        self.open = {
            number: Collective(
                number, reducing(tensor, [(ELEMENTS,)], "sum", 1.0), Result(nothing)
            )
            for number, tensor in self.tensors.items()
        }
        self.carrier, self.line = streaming(self.rank, self.slots)
        self.seat = Seat(self.carrier, self.progress, [])
        self.recovery = Recovery(self.seat, self.rank)
        for collective in self.open.values():
            self.carrier.put(collective)
        for number in self.failed:
            self.recovery.note(number, LATE)
        self._take_results()

    def _take_results(self) -> None:
        for number in self.failed:
            self.carrier.drop(number)
            del self.open[number]
        number, chunk = self.at
        for each in range(number + 1):
            if each not in self.failed:
                for part in range(chunk if each == number else CHUNKS):
                    self._hear(each, part)
        for each in range(number):
            self.open.pop(each, None)

    def _hear(self, number: int, chunk: int) -> None:
        response = pb.ReduceResponse(sequence=number, chunk=chunk)
        if (found := self.findings.get((number, chunk))) is not None:
            response.nonfinite.CopyFrom(found.write())
        elements = min(CHUNK_ELEMENTS, ELEMENTS - chunk * CHUNK_ELEMENTS)
        payload = bytes_of(torch.full((elements,), value(number, chunk)))
        self.line.said.append((response, memoryview(bytes(payload))))
        self.carrier.receive()
        while self.carrier.advance():
            pass

    @property
    def progress(self) -> pb.Progress:
        lapses = [pb.Lapse(sequence=number, failure=LATE) for number in self.failed]
        number, chunk = self.at
        return pb.Progress(rank=self.rank, sequence=number, chunk=chunk, lapses=lapses)

    def rejoin(self, everybody: list[pb.Progress]) -> None:
        """What _resuming does."""
        self.recovery.keep(self.carrier)
        if not self.seat.attempt:
            for collective in self.open.values():
                collective.sequence += 1
            self.open = {each.sequence: each for each in self.open.values()}
        self.carrier, self.line = streaming(self.rank, self.slots)
        self.seat.carrier, self.seat.own, self.seat.everybody = (
            self.carrier,
            self.progress,
            everybody,
        )
        first = self.open.get(self.at[0] + 1)
        self.recovery.rejoin(0, self.at[0], first, LostError("the daemon is gone"))

    def begin(self) -> Collective:
        return self.recovery.begin(self.carrier, self.open)

    def apply(self, replay: Collective) -> list[int]:
        """Numbers of what this completes."""
        complete = self.recovery.apply(replay, self.carrier, self.open)
        for each in complete:
            del self.open[each.sequence]
        return [each.sequence - 1 for each in complete]


def rejoin(ranks: Sequence[Rank]) -> list[Collective]:
    """The collectives with which the next attempt begins."""
    everybody = [rank.progress for rank in ranks]
    for rank in ranks:
        rank.rejoin(everybody)
    return [rank.begin() for rank in ranks]


def gather(replays: Sequence[Collective]) -> None:
    """What the daemons do with the collective with which the attempt begins."""
    assert len({each.sequence for each in replays}) == 1
    assert len({each.order.described.written for each in replays}) == 1
    whole = torch.zeros_like(replays[0].order.flat)
    for each in replays:
        start, stop = each.order.brings
        whole[start:stop] += each.order.flat[start:stop]
    for each in replays:
        for start, stop in each.order.takes:
            each.order.flat[start:stop] = whole[start:stop]


def take_up(ranks: Sequence[Rank]) -> list[list[int]]:
    """What the replay completes, rank by rank."""
    replays = rejoin(ranks)
    gather(replays)
    return [rank.apply(replay) for rank, replay in zip(ranks, replays, strict=True)]


def results(number: int, chunks: int = CHUNKS) -> list[float]:
    """A tensor that has so many of its chunks' results."""
    return [
        value(number, each // CHUNK_ELEMENTS) if each // CHUNK_ELEMENTS < chunks else 0.0
        for each in range(ELEMENTS)
    ]


@pytest.mark.parametrize(
    "places",
    [
        [(2, 1), (2, 1)],
        [(2, 0), (2, 2)],
        [(2, 2), (2, 0), (2, 1)],
        [(1, 1), (3, 2)],
        [(4, 0), (1, 2), (0, 0), (4, 0)],
        [(0, 0), (6, 0)],
    ],
)
def test_all_end_where_the_furthest_is(places: list[tuple[int, int]]) -> None:
    ranks = [Rank(rank, at) for rank, at in enumerate(places)]
    completed = take_up(ranks)
    number, chunk = max(places)
    for rank, at, done in zip(ranks, places, completed, strict=True):
        assert done == list(range(at[0], number))
        for each in range(number):
            assert rank.tensors[each].tolist() == results(each)
        if number < MOST:
            assert rank.tensors[number].tolist() == results(number, chunk)
            assert rank.open[number + 1].taken == chunk


def test_where_nobody_lacks_anything_the_replay_is_empty_and_still_takes_place() -> None:
    ranks = [Rank(0, (3, 1)), Rank(1, (3, 1))]
    replays = rejoin(ranks)
    assert [(each.size, each.sequence) for each in replays] == [(0, 3)] * 2
    gather(replays)
    assert [rank.apply(each) for rank, each in zip(ranks, replays, strict=True)] == [[], []]


def test_the_replay_has_the_sequence_before_that_of_the_first_that_somebody_lacks() -> None:
    """Numbers move by one: number 1, which rank 1 lacks, has sequence 2 from now on."""
    ranks = [Rank(0, (4, 2)), Rank(1, (1, 1))]
    assert {each.sequence for each in rejoin(ranks)} == {1}


def test_only_one_of_those_that_have_it_brings_it() -> None:
    ranks = [Rank(0, (1, 0)), Rank(1, (3, 1)), Rank(2, (3, 1))]
    replays = rejoin(ranks)
    brought = [stop - start for start, stop in (each.order.brings for each in replays)]
    assert brought == [0, replays[1].size, 0]
    assert replays[1].size > 0


def test_what_failed_for_one_is_passed_over_by_all_and_fails_for_those_that_wait() -> None:
    """Rank 0 has heard that 2 failed; rank 1 has a result of its first chunk."""
    ranks = [Rank(0, (4, 1), failed=(2,)), Rank(1, (2, 1)), Rank(2, (1, 2))]
    assert take_up(ranks) == [[], [3], [1, 3]]
    for rank in ranks:
        (failed,) = rank.recovery.failed().items()
        assert failed[0] == 3
        assert isinstance(failed[1], RoundTimeoutError)
        assert rank.tensors[1].tolist() == results(1)
        assert rank.tensors[3].tolist() == results(3)
        assert rank.tensors[4].tolist() == results(4, 1)
    assert ranks[2].tensors[2].tolist() == [0.0] * ELEMENTS


@pytest.mark.case("M08")
def test_what_is_not_finite_is_known_to_who_gets_it_afterwards() -> None:
    found = {(1, 2): Finding(0, 1), (2, 0): Finding(0, 3)}
    ranks = [Rank(0, (3, 0), findings=found), Rank(1, (1, 1))]
    waiting = ranks[1].open[1], ranks[1].open[2]
    assert take_up(ranks) == [[], [1, 2]]
    assert [each.finding for each in waiting] == [Finding(0, 9), Finding(0, 3)]


def test_what_was_replayed_can_be_replayed_by_who_got_it() -> None:
    ranks = [Rank(0, (2, 0)), Rank(1, (3, 1)), Rank(2, (2, 0))]
    replays = rejoin(ranks)
    gather(replays)
    for rank, replay in zip(ranks[:2], replays, strict=False):
        rank.apply(replay)
        rank.at = (3, 1)
    # Rank 2 has not come so far when the next daemon is lost: now rank 0 provides.
    again = rejoin(ranks)
    assert again[0].order.brings == (0, again[0].size)
    gather(again)
    assert [rank.apply(each) for rank, each in zip(ranks, again, strict=True)] == [[], [], [2]]
    assert ranks[2].tensors[2].tolist() == results(2)
    assert ranks[2].tensors[3].tolist() == results(3, 1)


@pytest.mark.parametrize(("slots", "enough"), [(4, True), (3, False)])
def test_a_result_that_is_gone_ends_the_job_and_says_which(slots: int, *, enough: bool) -> None:
    ranks = [Rank(0, (3, 1), slots=slots), Rank(1, (2, 0))]
    if enough:
        assert rejoin(ranks)[0].size > 0
        return
    with pytest.raises(LostError, match="chunk 0 of collective 2 is gone on rank 0"):
        rejoin(ranks)


def test_somebody_is_told_before_the_seat_is_taken_again() -> None:
    carrier, _ = streaming()
    own, told = pb.Progress(rank=0), list[str]()

    class Late(Seat):
        def rejoin(
            self, attempt: int, progress: pb.Progress, lost: LostError
        ) -> tuple[Carrier, list[pb.Progress]]:
            told.append("again")
            return super().rejoin(attempt, progress, lost)

    recovery = Recovery(Late(carrier, own, [own]), 0, lambda error: told.append(str(error)))
    recovery.rejoin(0, 0, None, LostError("it is gone"))
    assert told == ["it is gone", "again"]
