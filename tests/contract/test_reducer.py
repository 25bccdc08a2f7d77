"""What every schedule promises, on each of them: the Reducer protocol of reduce/effects.py."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.chunks import share_range
from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.reduce.choose import NAMES, reducer
from gradwire_server.reduce.effects import (
    Add,
    Done,
    Effect,
    Finish,
    Fold,
    Frame,
    Send,
    Store,
)
from gradwire_server.testing import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Vector: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

every_schedule = pytest.mark.parametrize("schedule", NAMES, ids=NAMES.get)
NODES = st.integers(1, 9)
SEEDS = st.integers(0, 2**32 - 1)


def simulate(
    schedule: pb.Schedule,
    vectors: Sequence[Vector],
    seed: int,
    finish: Callable[[Vector], Vector] = lambda vector: vector,
) -> list[Vector]:
    """What every node ends with."""
    nodes = len(vectors)
    reducers = [reducer(schedule, node, nodes) for node in range(nodes)]
    shares = reducers[0].shares
    cuts = [slice(*share_range(share, shares, len(vectors[0]))) for share in range(shares)]
    sums = [[vector[cut] for cut in cuts] for vector in vectors]
    ends = Simulation(reducers, sums, seed, np.add, finish).run()
    return [np.concatenate(parts) for parts in ends]


def floats(nodes: int, elements: int, seed: int) -> list[Vector]:
    """Numbers whose fp32 sum depends on the order of summation."""
    draw = np.random.default_rng(seed)
    scale = 10.0 ** draw.uniform(-6, 6, (nodes, elements))
    return list((draw.standard_normal((nodes, elements)) * scale).astype(np.float32))


def in_order(schedule: pb.Schedule, vectors: Sequence[Vector]) -> Vector:
    """The sum in the order that the schedule documents."""
    nodes = len(vectors)
    if schedule == pb.SCHEDULE_ONE_SHOT:
        return functools.reduce(np.add, vectors)
    if schedule == pb.SCHEDULE_TREE:

        def subtree(node: int) -> Vector:
            children = [child for child in (2 * node + 1, 2 * node + 2) if child < nodes]
            return functools.reduce(np.add, map(subtree, children), vectors[node])

        return subtree(0)
    total = np.empty_like(vectors[0])
    for share in range(nodes):
        cut = slice(*share_range(share, nodes, len(total)))
        around = (vectors[(share + hop) % nodes][cut] for hop in range(nodes))
        total[cut] = functools.reduce(np.add, around)
    return total


@every_schedule
@given(nodes=NODES, elements=st.integers(0, 5000), seed=SEEDS)
def test_every_node_ends_with_the_exact_sum(
    schedule: pb.Schedule, nodes: int, elements: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    vectors = list(draw.integers(-(2**40), 2**40, (nodes, elements)))
    for end in simulate(schedule, vectors, seed):
        np.testing.assert_array_equal(end, np.sum(vectors, axis=0), strict=True)


@pytest.mark.case("M28")
@every_schedule
@given(nodes=NODES, elements=st.integers(0, 3000), data=SEEDS, seeds=st.tuples(SEEDS, SEEDS))
def test_every_node_and_every_order_of_delivery_ends_with_the_same_bits(
    schedule: pb.Schedule, nodes: int, elements: int, data: int, seeds: tuple[int, int]
) -> None:
    vectors = floats(nodes, elements, data)
    ends = [end for seed in seeds for end in simulate(schedule, vectors, seed)]
    assert {end.tobytes() for end in ends} == {in_order(schedule, vectors).tobytes()}


@every_schedule
@given(nodes=NODES, seed=SEEDS)
def test_every_share_is_divided_exactly_once(
    schedule: pb.Schedule, nodes: int, seed: int
) -> None:
    numbers = [np.array([Fraction(node, 7)] * 10, dtype=object) for node in range(nodes)]
    mean = Fraction(sum(range(nodes)), 7 * nodes)
    for end in simulate(schedule, numbers, seed, lambda total: total / Fraction(nodes)):
        assert list(end) == [mean] * 10


@pytest.mark.case("M24")
@every_schedule
@pytest.mark.parametrize("nodes", range(1, 10))
@pytest.mark.parametrize("elements", range(4))
def test_fewer_elements_than_nodes_are_summed_too(
    schedule: pb.Schedule, nodes: int, elements: int
) -> None:
    vectors = floats(nodes, elements, 1)
    expected = in_order(schedule, vectors).tobytes()
    assert [end.tobytes() for end in simulate(schedule, vectors, 1)] == [expected] * nodes


@given(nodes=NODES, elements=st.integers(0, 500), seed=SEEDS)
def test_ring_and_direct_give_the_same_bits(nodes: int, elements: int, seed: int) -> None:
    vectors = floats(nodes, elements, seed)
    ring = simulate(pb.SCHEDULE_RING, vectors, seed)
    direct = simulate(pb.SCHEDULE_DIRECT, vectors, seed)
    assert ring[0].tobytes() == direct[0].tobytes()


def simulation(schedule: pb.Schedule, nodes: int, seed: int = 0) -> Simulation[int]:
    reducers = [reducer(schedule, node, nodes) for node in range(nodes)]
    ended = Simulation(
        reducers, [[2**node] * reducers[0].shares for node in range(nodes)], seed
    )
    ended.run()
    return ended


@every_schedule
@pytest.mark.parametrize("nodes", range(1, 10))
def test_every_share_is_finished_by_one_node_or_in_one_shot_by_all(
    schedule: pb.Schedule, nodes: int
) -> None:
    ended = simulation(schedule, nodes)
    finished = [
        each.share for said in ended.effects for each in said if isinstance(each, Finish)
    ]
    times = nodes if schedule == pb.SCHEDULE_ONE_SHOT else 1
    assert sorted(finished) == [
        share for share in range(len(ended.sums[0])) for _ in range(times)
    ]


@pytest.mark.parametrize("nodes", range(1, 10))
@pytest.mark.parametrize("schedule", [pb.SCHEDULE_RING, pb.SCHEDULE_DIRECT], ids=NAMES.get)
def test_no_node_sends_more_than_the_least_possible(schedule: pb.Schedule, nodes: int) -> None:
    """2(M-1)/M of the chunk: 2(M-1) of its M shares."""
    for said in simulation(schedule, nodes).effects:
        assert sum(isinstance(effect, Send) for effect in said) == 2 * (nodes - 1)


def test_a_large_tree_reaches_everybody_and_sends_each_chunk_up_and_down_once() -> None:
    ended = simulation(pb.SCHEDULE_TREE, 100)
    assert {share for shares in ended.sums for share in shares} == {2**100 - 1}
    sends = [each for said in ended.effects for each in said if isinstance(each, Send)]
    assert len(sends) == 2 * 99


@every_schedule
@given(nodes=st.integers(2, 9), data=st.data())
def test_no_frame_is_taken_twice_nor_any_by_a_node_that_is_done(
    schedule: pb.Schedule, nodes: int, data: st.DataObject
) -> None:
    """Replays one node's part as it happened, and again with a frame that it had before."""
    node = data.draw(st.integers(0, nodes - 1))
    said = simulation(schedule, nodes, data.draw(SEEDS)).effects[node]
    taken = ordered(said)
    replay = reducer(schedule, node, nodes)
    replay.start()
    count = data.draw(st.integers(0, len(taken)))
    for frame in taken[:count]:
        replay.receive(frame)
    for frame in taken[:count]:
        with pytest.raises(ProtocolError, match=f"node {node}"):
            replay.receive(frame)


FRAMES = st.builds(Frame, st.integers(-1, 9), st.integers(-1, 17), st.integers(-1, 9))


@every_schedule
@given(nodes=st.integers(1, 9), frames=st.lists(FRAMES, max_size=30), data=st.data())
def test_a_stray_frame_is_refused_and_changes_nothing(
    schedule: pb.Schedule, nodes: int, frames: list[Frame], data: st.DataObject
) -> None:
    """Whatever is sent before the real frames, only what belongs to the run is ever taken."""
    node = data.draw(st.integers(0, nodes - 1))
    said = simulation(schedule, nodes).effects[node]
    due = set(ordered(said))
    part = reducer(schedule, node, nodes)
    part.start()
    for frame in frames:
        if frame not in due:
            with pytest.raises(ProtocolError, match=f"node {node}"):
                part.receive(frame)
    effects = [effect for frame in ordered(said) for effect in part.receive(frame)]
    assert [*reducer(schedule, node, nodes).start(), *effects] == said


def ordered(said: Sequence[Effect]) -> list[Frame]:
    """The frames that a node took, in the order of their use."""
    frames: list[Frame] = []
    for effect in said:
        match effect:
            case Add(frame=frame) | Store(frame=frame):
                frames.append(frame)
            case Fold(frames=several):
                frames.extend(several)
            case Send() | Finish() | Done():
                pass
    return frames


@every_schedule
@pytest.mark.parametrize(("node", "nodes"), [(-1, 3), (3, 3), (0, 0)])
def test_a_node_outside_its_job_is_refused(
    schedule: pb.Schedule, node: int, nodes: int
) -> None:
    with pytest.raises(ValueError, match=f"node {node} is outside a job of {nodes} nodes"):
        reducer(schedule, node, nodes)


class Forgetful:
    """A schedule that is never done."""

    shares = 1

    def start(self) -> list[Send | Done]:
        return []

    def receive(self, frame: Frame) -> list[Send | Done]:
        raise AssertionError("nothing is sent")


def test_the_simulation_finds_a_node_that_waits_for_ever() -> None:
    with pytest.raises(ProtocolError, match=r"expected all nodes to be done, but \[0\] wait"):
        Simulation([Forgetful()], [[1]], 0).run()  # type: ignore[list-item]
