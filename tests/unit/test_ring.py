"""Effects as the paper prints them; contract/test_reducer.py has what holds of them all."""

from __future__ import annotations

import pytest

from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.effects import Add, Done, Finish, Frame, Send, Store
from gradwire_server.reduce.ring import Ring


def test_a_ring_of_one_only_finishes() -> None:
    assert Ring(0, 1).start() == [Finish(0), Done()]


def test_a_ring_of_two_adds_once_and_stores_once() -> None:
    ring = Ring(0, 2)
    assert ring.start() == [Send(1, 0, 0)]
    assert ring.receive(Frame(1, 0, 1)) == [
        Add(Frame(1, 0, 1)),
        Finish(1),
        Send(1, 1, 1),
    ]
    assert ring.receive(Frame(1, 1, 0)) == [Store(Frame(1, 1, 0)), Done()]


def test_in_a_ring_of_three_what_came_at_one_step_goes_on_at_the_next() -> None:
    ring = Ring(1, 3)
    assert ring.start() == [Send(2, 0, 1)]
    assert ring.receive(Frame(0, 0, 0)) == [Add(Frame(0, 0, 0)), Send(2, 1, 0)]
    assert ring.receive(Frame(0, 1, 2)) == [Add(Frame(0, 1, 2)), Finish(2), Send(2, 2, 2)]
    assert ring.receive(Frame(0, 2, 1)) == [Store(Frame(0, 2, 1)), Send(2, 3, 1)]
    assert ring.receive(Frame(0, 3, 0)) == [Store(Frame(0, 3, 0)), Done()]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Frame(2, 0, 0), id="from the wrong neighbour"),
        pytest.param(Frame(0, 1, 0), id="a step too early"),
        pytest.param(Frame(0, 0, 2), id="another share"),
        pytest.param(Frame(0, 0, -1), id="a share that does not exist"),
    ],
)
def test_a_frame_out_of_place_is_refused(frame: Frame) -> None:
    ring = Ring(1, 3)
    ring.start()
    with pytest.raises(
        ProtocolError, match=r"ring node 1 expected Frame\(source=0, step=0, sh"
    ):
        ring.receive(frame)


def test_a_frame_that_comes_twice_is_refused() -> None:
    ring = Ring(1, 3)
    ring.start()
    ring.receive(Frame(0, 0, 0))
    with pytest.raises(ProtocolError, match=r"expected .*step=1, share=2.*, got .*step=0"):
        ring.receive(Frame(0, 0, 0))


def test_a_refused_frame_changes_nothing() -> None:
    ring = Ring(0, 2)
    ring.start()
    with pytest.raises(ProtocolError):
        ring.receive(Frame(1, 1, 0))
    assert ring.receive(Frame(1, 0, 1))[0] == Add(Frame(1, 0, 1))
