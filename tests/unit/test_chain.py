"""The ranks of one node, adding up by themselves; the daemon's part is played by the test."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest
import torch
from prometheus_client import CollectorRegistry

from gradwire._errors import LostError
from gradwire_server.chain import Stall
from gradwire_server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node  # type: ignore[import-not-found]  # pytest finds it

SLOTS = 3
"""Of every node here; see conftest."""


def noise(rank: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    draw = torch.Generator().manual_seed(rank)
    return (torch.randn(elements, generator=draw) * 10.0 ** (rank % 5)).to(dtype)


def digest(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.numpy().tobytes())


@pytest.mark.parametrize("node", [1, 2, 5], indirect=True)
@pytest.mark.parametrize("elements", [0, 1, 1000, 100_000])
def test_ranks_are_added_in_their_order_whoever_comes_first(node: Node, elements: int) -> None:
    tensors = [noise(rank, elements) for rank in range(len(node.chains))]
    expected = tensors[0].clone()
    for tensor in tensors[1:]:
        expected += tensor
    for seed in range(3):
        for rank, tensor in enumerate(tensors):
            node.bring(rank, seed, tensor.clone())
        node.work(seed)
        for rank in range(len(tensors)):
            assert torch.equal(node.done[rank, seed], expected)


@pytest.mark.case("M06")
@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.float16, 40000.0), (torch.float16, 2.0**-24), (torch.float32, 3e38)],
)
def test_a_mean_neither_overflows_nor_vanishes(
    node: Node, dtype: torch.dtype, value: float
) -> None:
    for rank in range(3):
        node.bring(rank, 0, torch.full((40_000,), value, dtype=dtype), "mean")
    node.work()
    expected = torch.full((40_000,), value, dtype=dtype)
    for rank in range(3):
        assert torch.allclose(node.done[rank, 0], expected, rtol=1e-6)


@pytest.mark.case("M05")
def test_a_weighted_mean_is_over_the_weights(node: Node) -> None:
    for rank, (value, weight) in enumerate([(1.0, 1.0), (2.0, 2.0), (4.0, 5.0)]):
        node.bring(rank, 0, torch.full((10,), value), "mean", weight)
    node.work()
    assert node.done[1, 0].tolist() == [25 / 8] * 10


def test_a_part_of_weight_0_adds_nothing_not_even_what_is_no_number(node: Node) -> None:
    for sequence in range(3):
        for rank in range(3):
            value, weight = (float("nan"), 0.0) if rank == sequence else (rank + 1.0, 1.0)
            node.bring(rank, sequence, torch.full((10,), value), "mean", weight)
    node.work()
    assert [node.done[0, sequence][0].item() for sequence in range(3)] == [2.5, 2.0, 1.5]


def test_nobody_reads_a_mean_without_weights_and_the_daemon_hears_of_it(node: Node) -> None:
    for sequence, weight in ((0, 0.0), (1, 1.0)):
        for rank in range(3):
            node.bring(rank, sequence, torch.ones(10), "mean", weight)
    node.work()
    assert node.done == {}
    assert [ring.weightless for ring in node.bells[2].rings] == [0]
    node.daemon.count_failure()
    for chain in node.chains:
        chain.drop(0)
    node.work()
    assert set(node.done) == {(rank, 1) for rank in range(3)}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8])
def test_integers_are_added_exactly_and_their_mean_is_truncated(
    node: Node, dtype: torch.dtype
) -> None:
    for sequence, op in enumerate(("sum", "mean", "max")):
        for rank in range(3):
            node.bring(rank, sequence, torch.full((70_001,), 30 + rank * 2, dtype=dtype), op)
    node.work()
    assert node.done[2, 0].unique().tolist() == [96]
    assert node.done[0, 1].unique().tolist() == [32]
    assert node.done[1, 2].unique().tolist() == [34]


def test_no_rank_runs_further_ahead_than_there_are_slots(node: Node) -> None:
    for sequence in range(10):
        node.bring(0, sequence, torch.ones(5))
    for _ in range(100):
        node.advance(0)
    assert node.arena.control.added(0) == SLOTS


def test_a_rank_that_comes_late_holds_the_others_up_and_loses_nothing(node: Node) -> None:
    for sequence in range(5):
        for rank in (0, 2):
            node.bring(rank, sequence, torch.ones(5))
    node.work()
    assert node.done == {}
    assert node.daemon.stalls(1.0) == [Stall(each, 1.0, [1]) for each in range(5)]
    assert node.daemon.stalls(9.0) == [Stall(each, 1.0, [1]) for each in range(5)]
    for sequence in range(5):
        node.bring(1, sequence, torch.ones(5))
    node.work()
    assert {key for key in node.done if node.done[key].tolist() == [3.0] * 5} == {
        (rank, sequence) for rank in range(3) for sequence in range(5)
    }


@pytest.mark.case("M31")
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_who_brings_something_else_is_found_out_before_anything_is_read(
    node: Node, odd: int
) -> None:
    for rank in range(3):
        node.bring(rank, 0, torch.ones(50_000 if rank == odd else 5))
        node.bring(rank, 1, torch.full((7,), 2.0))
    node.work()
    assert node.done == {}
    (rung,) = [ring for bell in node.bells for ring in bell.rings]
    assert rung.disagreement.sequence == 0
    assert {rung.disagreement.mine.elements, rung.disagreement.theirs.elements} == {5, 50_000}
    node.daemon.count_failure()
    for chain in node.chains:
        chain.drop(0)
    node.work()
    assert set(node.done) == {(rank, 1) for rank in range(3)}
    assert node.done[odd, 1].tolist() == [6.0] * 7


def test_a_collective_that_failed_is_passed_over_by_who_has_not_come_to_it(node: Node) -> None:
    for rank in (0, 1):
        node.bring(rank, 0, torch.ones(40_000))
    node.work()
    node.daemon.count_failure()
    for chain in node.chains:
        chain.drop(0)
    node.chains[2].skip(0)
    for rank in range(3):
        node.bring(rank, 1, torch.ones(5))
    node.work()
    assert [node.done[rank, 1].tolist() for rank in range(3)] == [[3.0] * 5] * 3


def test_nobody_takes_a_result_before_having_heard_of_a_failure(node: Node) -> None:
    for rank in range(3):
        node.bring(rank, 0, torch.ones(5))
    node.daemon.count_failure()
    node.work()
    assert node.done == {}
    for chain in node.chains:
        chain.drop(0)
    node.work()
    assert node.done == {}


def test_what_can_not_complete_is_rung_for(node: Node) -> None:
    node.daemon.limit(1)
    node.bring(0, 0, torch.ones(5))
    node.bring(0, 1, torch.ones(5))
    assert [ring.beyond for ring in node.bells[0].rings] == [1]


def test_ranks_that_lost_count_of_one_another_say_so(node: Node) -> None:
    node.bring(0, 0, torch.ones(5))
    node.bring(1, 1, torch.ones(5))
    node.advance(0)
    with pytest.raises(LostError, match=r"at chunk 0 of collective 1, .* chunk 0 of 0"):
        node.advance(1)


def test_where_there_are_other_nodes_the_last_rank_rings_and_the_daemon_does_the_rest(
    linked: Node,
) -> None:
    for rank in range(2):
        linked.bring(rank, 0, torch.full((5,), rank + 1.0))
    linked.work()
    assert linked.done == {}
    assert [ring.ready for ring in linked.bells[1].rings] == [1]
    ((number, ticket),) = linked.daemon.ready()
    assert ticket is not None
    assert (ticket.sequence, ticket.chunk, linked.daemon.weight(number)) == (0, 0, 2.0)
    place = linked.daemon.place(number)
    total = torch.frombuffer(place.total(20), dtype=torch.float32)
    assert total.tolist() == [3.0] * 5
    total.mul_(100)
    linked.daemon.publish(number)
    linked.work()
    assert [linked.done[rank, 0].tolist() for rank in range(2)] == [[300.0] * 5] * 2


def test_a_slot_is_used_again_when_the_daemon_has_released_it_and_all_have_read_it(
    linked: Node,
) -> None:
    for sequence in range(SLOTS + 1):
        for rank in range(2):
            linked.bring(rank, sequence, torch.ones(5))
    linked.work()
    for number, _ in linked.daemon.ready():
        linked.daemon.publish(number)
    linked.work()
    assert linked.arena.control.added(0) == SLOTS
    linked.daemon.release(0)
    linked.work()
    assert linked.arena.control.added(0) == SLOTS + 1


def test_a_ticket_that_the_daemon_gave_up_is_read_by_nobody(linked: Node) -> None:
    for rank in range(2):
        linked.bring(rank, 0, torch.ones(5))
    linked.work()
    ((number, _),) = linked.daemon.ready()
    linked.daemon.spoil(number)
    linked.work()
    assert linked.done == {}


def test_a_rank_that_does_not_pass_on_what_it_was_passed_is_missing(node: Node) -> None:
    for rank in range(3):
        node.bring(rank, 0, torch.ones(5))
    node.advance(0)
    node.advance(1)
    assert [stall.missing for stall in node.daemon.stalls(0.0)] == [[2]]


@pytest.mark.case("M28")
def test_many_collectives_in_flight_give_the_same_bits_in_every_order(
    tmp_path: Path, node_of: Callable[..., Node]
) -> None:
    digests = set()
    for seed in range(4):
        (folder := tmp_path / str(seed)).mkdir()
        node = node_of(folder, 4)
        for sequence in range(6):
            for rank in range(4):
                node.bring(rank, sequence, noise(rank + sequence, 30_000), "mean")
        node.work(seed)
        for sequence in range(6):
            ends = {digest(node.done[rank, sequence]) for rank in range(4)}
            assert len(ends) == 1
        digests.add(tuple(digest(node.done[0, each]) for each in range(6)))
        node.close()
    assert len(digests) == 1


def test_a_rank_that_is_stuck_is_named_for_the_next_collective_too(node: Node) -> None:
    for sequence in range(2):
        for rank in (0, 2):
            node.bring(rank, sequence, torch.ones(5))
    assert [stall.sequence for stall in node.daemon.stalls(0.0)] == [0, 1]
    (stall,) = node.daemon.stalls(60.0, lambda sequence: sequence == 0)
    assert stall == Stall(1, 0.0, [1])


def test_rounds_and_their_time_are_those_of_one_rank(node: Node) -> None:
    """Whoever takes a result last has counted more than the others for a moment."""
    for rank in range(3):
        node.bring(rank, 0, torch.ones(5))
    while (2, 0) not in node.done:
        for rank in (2, 1, 0):
            if rank == 2 or node.arena.control.added(rank) == 0:
                node.advance(rank)
    assert node.daemon.tally().rounds == 0
    node.work()
    assert node.daemon.tally().rounds == 1
    assert node.daemon.tally().bytes == 0  # told when a future is resolved, which is not played


def test_nobody_looks_at_an_arena_that_has_gone(
    tmp_path: Path, node_of: Callable[..., Node]
) -> None:
    node = node_of(tmp_path, 1, alone=False)
    node.bring(0, 0, torch.ones(5))
    node.work()
    node.daemon.close(Metrics(CollectorRegistry(), "0"))
    node.close()
    assert list(node.daemon.ready()) == []
