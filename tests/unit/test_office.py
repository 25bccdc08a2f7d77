from __future__ import annotations

import pytest

from gradwire_proto import wire
from gradwire_proto.letters import MOST_SMALL_BYTES, SMALL_BYTES
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.group import Group, Node, Picture
from gradwire_server.office import Office, Tray

PICTURE = Picture("g", 3, (Node("a", "a:1", "a", (0, 1)), Node("b", "b:1", "b", (2,))))
CHUNK = 4096


class Roads:
    """Keeps what goes to other nodes."""

    def __init__(self) -> None:
        self.posted: list[tuple[int, pb.Note, bytes]] = []

    def post(self, target: int, note: pb.Note, payload: memoryview) -> None:
        self.posted.append((target, note, bytes(payload)))


@pytest.fixture
def roads() -> Roads:
    return Roads()


@pytest.fixture
def office(roads: Roads) -> Office:
    """Of the node with ranks 0 and 1."""
    made = Office(Group(PICTURE, 0), CHUNK)
    made.connect(roads)
    return made


def offer(source: int, target: int, size: int, number: int = 1) -> pb.Note:
    return pb.Note(source=source, target=target, number=number, offer=pb.Offer(size=size))


def request(note: pb.Note, payload: bytes = b"") -> bytes:
    return wire.join(pb.PostRequest(note=note), memoryview(payload))


def read(tray: Tray) -> list[tuple[pb.Note, bytes]]:
    """All that is in a tray."""
    heard = []
    while (data := tray.take()) is not None:
        response, payload = wire.split(data, pb.PostResponse)
        heard.append((response.note, bytes(payload)))
    return heard


def test_a_note_to_a_rank_of_the_node_lies_in_its_tray(office: Office, roads: Roads) -> None:
    note = offer(0, 1, 3)
    office.send(0, request(note, b"abc"))
    assert read(office.tray(1)) == [(note, b"abc")]
    assert not roads.posted


def test_a_note_to_another_node_goes_there(office: Office, roads: Roads) -> None:
    note = offer(0, 2, 3)
    office.send(0, request(note, b"abc"))
    assert roads.posted == [(1, note, b"abc")]


def test_a_note_from_another_node_lies_in_a_tray(office: Office) -> None:
    note = offer(2, 1, 3)
    office.receive(1, note, memoryview(b"abc"))
    assert read(office.tray(1)) == [(note, b"abc")]


def test_a_tray_says_when_there_is_something_before_and_after_it_is_open(
    office: Office,
) -> None:
    said: list[int] = []
    office.send(0, request(offer(0, 1, 3)))
    tray = office.tray(1)
    tray.open(lambda: said.append(len(said)))
    assert said == [0]
    office.send(0, request(offer(0, 1, 3, number=2)))
    assert said == [0, 1]
    with pytest.raises(ProtocolError, match="rank 1 already has a stream of letters"):
        office.tray(1)


@pytest.mark.parametrize(
    ("source", "target"), [(1, 0), (0, 0), (0, 3), (2, 0)], ids=["other", "self", "none", "far"]
)
def test_a_rank_speaks_for_itself_and_to_another(
    office: Office, source: int, target: int
) -> None:
    with pytest.raises(ProtocolError, match="expected a note from rank 0 to another"):
        office.send(0, request(offer(source, target, 3)))


@pytest.mark.parametrize(("source", "target"), [(0, 1), (2, 2), (2, 3), (3, 0)])
def test_a_node_speaks_for_its_ranks_and_to_those_here(
    office: Office, source: int, target: int
) -> None:
    with pytest.raises(ProtocolError, match="expected a note from a rank of node 1"):
        office.receive(1, offer(source, target, 3), memoryview(b""))


def test_what_is_no_note_is_refused(office: Office) -> None:
    for garbage in (b"\x00", b"\xff" * 40, b"\x7a\xff\xff\xff\xff\x0f"):
        with pytest.raises(ProtocolError, match="this is no PostRequest"):
            office.send(0, garbage)
    fat = pb.PostRequest(seat="x" * 5000, note=offer(0, 1, 3)).SerializeToString()
    with pytest.raises(ProtocolError, match="and nothing else"):
        office.send(0, fat)
    with pytest.raises(ProtocolError, match="expected a note"):
        office.send(0, b"")


def test_what_is_withdrawn_before_it_was_read_was_never_there(office: Office) -> None:
    """Who offers and withdraws, again and again, fills nobody's tray."""
    payload = bytes(SMALL_BYTES)
    withdrawal = pb.Withdrawal(failure=pb.Failure(reason="late"))
    for number in range(1, 4 * MOST_SMALL_BYTES // SMALL_BYTES):
        office.send(0, request(offer(0, 1, SMALL_BYTES, number), payload))
        last = pb.Note(source=0, target=1, number=number, withdrawal=withdrawal)
        office.send(0, request(last))
    assert read(office.tray(1)) == []


def test_what_is_withdrawn_after_it_was_read_is_said(office: Office) -> None:
    tray = office.tray(1)
    office.send(0, request(offer(0, 1, 3)))
    read(tray)
    withdrawal = pb.Note(source=0, target=1, number=1, withdrawal=pb.Withdrawal())
    office.send(0, request(withdrawal))
    assert read(tray) == [(withdrawal, b"")]


def test_all_ranks_of_the_node_hear_once_who_has_left(office: Office, roads: Roads) -> None:
    office.depart(2)
    office.depart(2)
    for rank in (0, 1):
        expected = pb.Note(source=2, target=rank, departure=pb.Departure())
        assert read(office.tray(rank)) == [(expected, b"")]
    office.send(0, request(offer(0, 2, 3)))
    office.receive(1, offer(2, 0, 3), memoryview(b""))
    assert not roads.posted
    assert read(office.tray(0)) == []


def test_who_has_left_has_no_tray(office: Office) -> None:
    office.send(0, request(offer(0, 1, 3)))
    office.depart(1)
    office.send(0, request(offer(0, 1, 3, number=2)))
    with pytest.raises(ProtocolError, match="or has left"):
        office.tray(1)
