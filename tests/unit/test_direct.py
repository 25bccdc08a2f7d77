from __future__ import annotations

import pytest

from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.direct import Direct
from gradwire_server.reduce.effects import Add, Done, Finish, Frame, Send, Store

SCATTER, GATHER = 0, 1


def test_one_node_alone_only_finishes() -> None:
    assert Direct(0, 1).start() == [Finish(0), Done()]


def test_two_nodes_swap_halves_and_then_results() -> None:
    node = Direct(0, 2)
    assert node.start() == [Send(1, SCATTER, 1)]
    assert node.receive(Frame(1, SCATTER, 0)) == [
        Add(Frame(1, SCATTER, 0)),
        Finish(0),
        Send(1, GATHER, 0),
    ]
    assert node.receive(Frame(1, GATHER, 1)) == [Store(Frame(1, GATHER, 1)), Done()]


def test_every_other_node_gets_its_own_share_nearest_first() -> None:
    assert Direct(1, 3).start() == [Send(2, SCATTER, 2), Send(0, SCATTER, 0)]


def test_partials_are_added_around_the_nodes_whoever_comes_first() -> None:
    node = Direct(1, 3)
    node.start()
    assert node.receive(Frame(0, SCATTER, 1)) == []
    assert node.receive(Frame(2, SCATTER, 1)) == [
        Add(Frame(2, SCATTER, 1)),
        Add(Frame(0, SCATTER, 1)),
        Finish(1),
        Send(2, GATHER, 1),
        Send(0, GATHER, 1),
    ]


def test_a_result_may_come_before_the_last_partial() -> None:
    node = Direct(0, 2)
    node.start()
    assert node.receive(Frame(1, GATHER, 1)) == [Store(Frame(1, GATHER, 1))]
    assert node.receive(Frame(1, SCATTER, 0))[-2:] == [Send(1, GATHER, 0), Done()]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Frame(2, SCATTER, 0), id="a partial of somebody else's share"),
        pytest.param(Frame(2, GATHER, 0), id="a result that is not the sender's"),
        pytest.param(Frame(2, 2, 2), id="a step that does not exist"),
        pytest.param(Frame(1, SCATTER, 1), id="a partial from itself"),
        pytest.param(Frame(1, GATHER, 1), id="a result from itself"),
        pytest.param(Frame(3, SCATTER, 1), id="from a node that does not exist"),
        pytest.param(Frame(3, GATHER, 3), id="the result of one"),
    ],
)
def test_a_frame_out_of_place_is_refused(frame: Frame) -> None:
    node = Direct(1, 3)
    node.start()
    with pytest.raises(ProtocolError, match="direct node 1 expected"):
        node.receive(frame)


@pytest.mark.parametrize("frame", [Frame(0, SCATTER, 1), Frame(2, GATHER, 2)])
def test_a_frame_that_comes_twice_is_refused(frame: Frame) -> None:
    node = Direct(1, 3)
    node.start()
    node.receive(frame)
    with pytest.raises(ProtocolError, match="direct node 1 expected"):
        node.receive(frame)


def test_a_node_that_is_done_takes_nothing_more() -> None:
    node = Direct(0, 2)
    node.start()
    node.receive(Frame(1, SCATTER, 0))
    node.receive(Frame(1, GATHER, 1))
    for frame in (Frame(1, SCATTER, 0), Frame(1, GATHER, 1)):
        with pytest.raises(ProtocolError, match="expected"):
            node.receive(frame)
