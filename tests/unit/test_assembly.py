"""Pieces that come in any order become parts again; a peer that sends nonsense is found out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.round import Key, Spec
from gradwire_server.transport.assembly import Assembler, Opening, Piece, Skip
from gradwire_server.transport.base import Part
from gradwire_server.transport.stripes import ALIGNMENT, MOST_PIECES, WINDOW, Order

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

MOST = 100 * ALIGNMENT
SPEC = Spec(pb.OP_SUM, pb.DTYPE_INT8, 1000, 0)


def opening(number: int, data: bytes, size: int, after: int = 0, sequence: int = 0) -> Opening:
    key, ring = Key(sequence, 0), peer_pb2.SCHEDULE_RING
    part = Part(key, ring, number, 0, 1.0, SPEC, (memoryview(data),))
    return Opening(number, after, size, part)


def piece(number: int, offset: int, data: bytes) -> Piece:
    return Piece(number, offset, memoryview(data))


def whole(part: Part) -> bytes:
    return b"".join(part.pieces)


def share(
    place: tuple[int, int], sequence: int, data: bytes, step: int
) -> list[Opening | Piece]:
    """A share, cut every `step` bytes."""
    number, after = place
    first = opening(number, data[:step], len(data), after, sequence)
    rest = range(step, len(data), step)
    return [first, *(piece(number, at, data[at : at + step]) for at in rest)]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, MOST), st.integers(1, 4)), max_size=20
    ),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_shares_come_whole_and_those_of_a_round_in_order_over_any_lanes(
    shares: list[tuple[int, int, int]], lanes: int, draw: random.Random
) -> None:
    order, ways = Order(), [list[Opening | Piece]() for _ in range(lanes)]
    sent: dict[int, list[bytes]] = {}
    for sequence, size, width in shares:
        data = draw.randbytes(size)
        sent.setdefault(sequence, []).append(data)
        for each in share(order.next(Key(sequence, 0)), sequence, data, width * 8 * ALIGNMENT):
            draw.choice(ways).append(each)
    assembler, got = Assembler(MOST), dict[int, list[bytes]]()
    while any(ways):
        for part in assembler.take(draw.choice([way for way in ways if way]).pop(0)):
            got.setdefault(part.key.sequence, []).append(whole(part))
    assert got == sent
    assert assembler.held_bytes == 0


def test_a_share_waits_for_the_one_before_it_and_for_no_other_round() -> None:
    assembler = Assembler(MOST)
    assert assembler.take(opening(1, b"a" * ALIGNMENT, ALIGNMENT + 1)) == []
    assert assembler.take(opening(2, b"b", 1, after=1)) == []
    assert [whole(part) for part in assembler.take(opening(3, b"c", 1, sequence=1))] == [b"c"]
    assert [whole(part) for part in assembler.take(opening(4, b"d", 1, after=2))] == []
    parts = assembler.take(piece(1, ALIGNMENT, b"a"))
    assert [whole(part) for part in parts] == [b"a" * (ALIGNMENT + 1), b"b", b"d"]


def test_what_is_called_off_is_dropped_whatever_still_comes_of_it() -> None:
    assembler = Assembler(MOST)
    assembler.take(piece(1, ALIGNMENT, b"x"))
    assert assembler.take(opening(2, b"b", 1, after=1)) == []
    assert [whole(part) for part in assembler.take(Skip(1))] == [b"b"]
    assert assembler.take(opening(1, b"a" * ALIGNMENT, ALIGNMENT + 2)) == []
    assert assembler.take(piece(1, 2 * ALIGNMENT, b"x")) == []
    assert assembler.held_bytes == 0
    assert assembler.take(Skip(3)) == []


def filled(pieces: int) -> list[Opening | Piece | Skip]:
    return [piece(1, (at + 1) * ALIGNMENT, b"x") for at in range(pieces)]


FULL = b"x" * ALIGNMENT


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([opening(1, b"", MOST + 1)], id="larger than a share can be"),
        pytest.param([opening(1, b"xx", 1)], id="more at once than there is"),
        pytest.param([opening(1, b"", 1)], id="nothing to begin with"),
        pytest.param([opening(2, b"x", 1, after=2)], id="after itself"),
        pytest.param([opening(2, b"x", 1, after=3)], id="after a later one"),
        pytest.param([opening(0, b"x", 1)], id="number 0"),
        pytest.param([opening(WINDOW + 1, b"x", 1)], id="far ahead"),
        pytest.param([opening(1, FULL, 99), opening(1, FULL, 99)], id="begun twice"),
        pytest.param([piece(1, 0, b"x")], id="a piece where the first is"),
        pytest.param([piece(1, 1, b"x")], id="between elements"),
        pytest.param([piece(1, ALIGNMENT, b"")], id="an empty piece"),
        pytest.param([piece(1, MOST, b"x")], id="a piece outside"),
        pytest.param([opening(1, FULL, 65), piece(1, 128, b"x")], id="outside this share"),
        pytest.param([piece(1, 128, b"x"), opening(1, FULL, 65)], id="outside, but first"),
        pytest.param([piece(1, 64, b"x"), piece(1, 64, b"x")], id="a piece twice"),
        pytest.param([piece(1, 128, FULL), opening(1, FULL, 128)], id="a hole"),
        pytest.param([opening(1, FULL * 2, 192), piece(1, 64, FULL)], id="a knot"),
        pytest.param(filled(MOST_PIECES + 1), id="many pieces"),
        pytest.param([opening(1, FULL, 65), opening(2, b"", 0, 1), opening(3, b"", 0, 1)],
                     id="two after the same"),
        pytest.param([opening(1, b"x", 1), Skip(1)], id="whole, and called off"),
        pytest.param([Skip(WINDOW + 1)], id="called off far ahead"),
    ],
)  # fmt: skip
def test_pieces_that_make_no_share_are_refused(
    frames: Sequence[Opening | Piece | Skip],
) -> None:
    assembler = Assembler(MOST)
    for each in frames[:-1]:
        assembler.take(each)
    with pytest.raises(ProtocolError):
        assembler.take(frames[-1])
    assert assembler.held_bytes <= MOST
