from __future__ import annotations

import pytest

from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.effects import Done, Finish, Fold, Frame, Send
from gradwire_server.reduce.one_shot import OneShot


def test_one_node_alone_only_finishes() -> None:
    assert OneShot(0, 1).start() == [Finish(0), Done()]


def test_two_nodes_swap_once() -> None:
    node = OneShot(1, 2)
    assert node.start() == [Send(0, 0, 0)]
    frame = Frame(0, 0, 0)
    assert node.receive(frame) == [Fold((frame,)), Finish(0), Done()]


def test_sums_are_folded_in_the_order_of_the_nodes_whoever_comes_first() -> None:
    node = OneShot(1, 4)
    assert node.start() == [Send(2, 0, 0), Send(3, 0, 0), Send(0, 0, 0)]
    frames = {source: Frame(source, 0, 0) for source in (0, 2, 3)}
    assert node.receive(frames[3]) == []
    assert node.receive(frames[0]) == []
    assert node.receive(frames[2])[0] == Fold((frames[0], frames[2], frames[3]))


@pytest.mark.parametrize(
    "frame",
    [Frame(0, 0, 0), Frame(3, 0, 0), Frame(1, 1, 0), Frame(1, 0, 1)],
    ids=["from itself", "from nowhere", "a second hop", "a second share"],
)
def test_a_frame_that_has_no_place_is_refused(frame: Frame) -> None:
    node = OneShot(0, 3)
    node.start()
    with pytest.raises(ProtocolError, match=r"one-shot node 0 expected the sums of \[1, 2\]"):
        node.receive(frame)


def test_a_sum_that_comes_twice_is_refused() -> None:
    node = OneShot(0, 3)
    node.start()
    node.receive(Frame(2, 0, 0))
    with pytest.raises(ProtocolError, match=r"expected the sums of \[1\]"):
        node.receive(Frame(2, 0, 0))
