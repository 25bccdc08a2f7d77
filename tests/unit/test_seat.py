from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1 import tensor_pb2
from gradwire_server.errors import ProtocolError
from gradwire_server.group import Member
from gradwire_server.round import Contribution, Key, Spec
from gradwire_server.seat import Seat, read_request
from gradwire_server.testing import run, virtual_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBER = Member(3, "alpha", 33)
LOST = pb.Failure(
    scope=pb.Failure.SCOPE_JOB, kind=pb.Failure.KIND_LOST, reason="rank 1 is lost"
)


class Line:
    """A carrier that keeps what it is given."""

    def __init__(self, *, inline: bool) -> None:
        self.inline = inline
        self.sent: list[tuple[pb.ReduceResponse, bytes]] = []

    def send(self, response: bytes) -> None:
        message, payload = wire.split(response, pb.ReduceResponse)
        self.sent.append((message, bytes(payload)))


def with_a_seat(test: Callable[[Seat], None]) -> None:
    async def main() -> None:
        seat = Seat(MEMBER)
        test(seat)
        seat.close()

    run(main())


def test_a_stream_gets_the_result_itself() -> None:
    def test(seat: Seat) -> None:
        line = Line(inline=True)
        seat.open(line)
        seat.result(Key(7, 2), memoryview(b"gradient"))
        assert line.sent == [(pb.ReduceResponse(sequence=7, chunk=2), b"gradient")]

    with_a_seat(test)


def test_word_of_the_first_collective_is_no_empty_packet() -> None:
    """An empty packet would read as the end of a doorbell."""

    def test(seat: Seat) -> None:
        line = Line(inline=False)
        seat.open(line)
        seat.failed(0, pb.Failure())
        ((message, _),) = line.sent
        assert message.HasField("sequence")

    with_a_seat(test)


def test_a_stream_may_take_over_from_a_doorbell_but_not_the_other_way_round() -> None:
    def test(seat: Seat) -> None:
        doorbell, stream = Line(inline=False), Line(inline=True)
        seat.open(doorbell)
        seat.open(stream)
        seat.result(Key(0, 0), memoryview(b"x"))
        assert (len(doorbell.sent), len(stream.sent)) == (0, 1)
        for late in (Line(inline=False), Line(inline=True)):
            with pytest.raises(ProtocolError, match="already has a stream"):
                seat.open(late)

    with_a_seat(test)


def test_failures_before_the_line_is_open_are_told_in_order_once_it_is() -> None:
    def test(seat: Seat) -> None:
        seat.failed(3, pb.Failure(reason="first"))
        seat.failed(4, pb.Failure(reason="second"))
        line = Line(inline=False)
        seat.open(line)
        said = [(message.sequence, message.failure.reason) for message, _ in line.sent]
        assert said == [(3, "first"), (4, "second")]

    with_a_seat(test)


@pytest.mark.parametrize(("inline", "path"), [(True, "stream"), (False, "shared_memory")])
def test_a_path_is_known_once_the_stream_is_open(inline: bool, path: str) -> None:
    def test(seat: Seat) -> None:
        assert seat.path == ""
        seat.open(Line(inline=inline))
        assert seat.path == path

    with_a_seat(test)


def test_a_failure_before_the_stream_is_told_when_it_opens() -> None:
    def test(seat: Seat) -> None:
        line = Line(inline=True)
        seat.failed(4, LOST)
        seat.open(line)
        ((message, _),) = line.sent
        assert message.failure == LOST

    with_a_seat(test)


def test_a_second_stream_is_refused_and_the_first_one_stays() -> None:
    def test(seat: Seat) -> None:
        first, second = Line(inline=True), Line(inline=True)
        seat.open(first)
        with pytest.raises(
            ProtocolError, match=r"rank 3 \(pid 33 on alpha\) already has a str"
        ):
            seat.open(second)
        seat.failed(0, LOST)
        assert (len(first.sent), second.sent) == (1, [])

    with_a_seat(test)


def test_a_rank_that_opens_no_stream_in_time_is_lost() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        Seat(MEMBER).expect(30.0, lambda: said.append("lost"))
        await virtual_seconds(29)
        early = len(said)
        await virtual_seconds(2)
        return ["early"] * early + said

    assert run(main()) == ["lost"]


@pytest.mark.parametrize("end", [lambda seat: seat.open(Line(inline=True)), Seat.close])
def test_a_rank_that_opened_its_stream_or_left_is_not(end: Callable[[Seat], None]) -> None:
    async def main() -> list[str]:
        said: list[str] = []
        seat = Seat(MEMBER)
        seat.expect(30.0, lambda: said.append("lost"))
        end(seat)
        await virtual_seconds(60)
        return said

    assert run(main()) == []


def test_seats_are_told_apart_by_a_token_nobody_can_guess() -> None:
    def test(seat: Seat) -> None:
        tokens.add(seat.token)

    tokens: set[str] = set()
    for _ in range(20):
        with_a_seat(test)
    assert len(tokens) == 20
    assert min(map(len, tokens)) >= 32


def test_a_request_is_read_as_a_key_and_a_contribution() -> None:
    spec = tensor_pb2.Spec(op=tensor_pb2.OP_MAX, dtype=tensor_pb2.DTYPE_INT8, elements=9)
    spec.MergeFrom(tensor_pb2.Spec(shape_digest=4, shapes="3x3", wire=tensor_pb2.WIRE_EXACT))
    request = pb.ReduceRequest(sequence=5, chunk=6, spec=spec, weight=0.5)
    payload = memoryview(b"123456789")
    key, contribution = read_request(request, payload)
    expected = Spec(tensor_pb2.OP_MAX, tensor_pb2.DTYPE_INT8, 9, 4, "3x3")
    assert key == Key(5, 6)
    assert contribution == Contribution(expected, 0.5, payload)
    assert contribution.spec.shapes == "3x3"
