from __future__ import annotations

import pytest

from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.effects import Add, Done, Finish, Frame, Send, Store
from gradwire_server.reduce.tree import Tree

UP, DOWN = 0, 1


def test_a_tree_of_one_only_finishes() -> None:
    assert Tree(0, 1).start() == [Finish(0), Done()]


def test_a_leaf_speaks_at_once_and_stores_what_comes_down() -> None:
    leaf = Tree(2, 3)
    assert leaf.start() == [Send(0, UP, 0)]
    assert leaf.receive(Frame(0, DOWN, 0)) == [Store(Frame(0, DOWN, 0)), Done()]


def test_the_root_finishes_once_both_children_have_spoken() -> None:
    root = Tree(0, 3)
    assert root.start() == []
    assert root.receive(Frame(1, UP, 0)) == [Add(Frame(1, UP, 0))]
    assert root.receive(Frame(2, UP, 0)) == [
        Add(Frame(2, UP, 0)),
        Finish(0),
        Send(1, DOWN, 0),
        Send(2, DOWN, 0),
        Done(),
    ]


def test_children_are_added_in_the_order_of_their_numbers_whoever_comes_first() -> None:
    root = Tree(0, 3)
    root.start()
    assert root.receive(Frame(2, UP, 0)) == []
    assert root.receive(Frame(1, UP, 0))[:2] == [Add(Frame(1, UP, 0)), Add(Frame(2, UP, 0))]


def test_a_node_in_the_middle_hands_up_and_down() -> None:
    middle = Tree(1, 4)
    assert middle.start() == []
    assert middle.receive(Frame(3, UP, 0)) == [Add(Frame(3, UP, 0)), Send(0, UP, 0)]
    assert middle.receive(Frame(0, DOWN, 0)) == [
        Store(Frame(0, DOWN, 0)),
        Send(3, DOWN, 0),
        Done(),
    ]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Frame(2, UP, 0), id="from a node that is no child"),
        pytest.param(Frame(0, UP, 0), id="a sum from the parent"),
        pytest.param(Frame(0, DOWN, 0), id="a result before the sum went up"),
        pytest.param(Frame(3, DOWN, 0), id="a result from a child"),
        pytest.param(Frame(3, UP, 1), id="a share that does not exist"),
        pytest.param(Frame(3, 2, 0), id="a step that does not exist"),
        pytest.param(Frame(-1, DOWN, 0), id="from nobody"),
    ],
)
def test_a_frame_out_of_place_is_refused(frame: Frame) -> None:
    middle = Tree(1, 5)
    middle.start()
    with pytest.raises(ProtocolError, match=r"tree node 1 expected the sums of nodes \[3, 4\]"):
        middle.receive(frame)


@pytest.mark.parametrize("frame", [Frame(-1, DOWN, 0), Frame(1, UP, 0)])
def test_a_root_takes_nothing_from_nobody_and_nothing_twice(frame: Frame) -> None:
    root = Tree(0, 3)
    root.start()
    root.receive(Frame(1, UP, 0))
    with pytest.raises(ProtocolError, match=r"expected the sums of nodes \[2\]"):
        root.receive(frame)


def test_a_sum_that_waits_for_its_turn_is_not_taken_twice() -> None:
    root = Tree(0, 3)
    root.start()
    root.receive(Frame(2, UP, 0))
    with pytest.raises(ProtocolError, match="got Frame"):
        root.receive(Frame(2, UP, 0))


def test_a_leaf_that_is_done_takes_no_second_result() -> None:
    leaf = Tree(1, 3)
    leaf.start()
    with pytest.raises(ProtocolError, match="expected the result from node 0"):
        leaf.receive(Frame(2, DOWN, 0))
    leaf.receive(Frame(0, DOWN, 0))
    with pytest.raises(ProtocolError, match="tree node 1 is done and expected nothing"):
        leaf.receive(Frame(0, DOWN, 0))
