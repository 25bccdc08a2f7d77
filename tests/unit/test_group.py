from __future__ import annotations

from dataclasses import replace

import pytest

from gradwire_server.errors import LateError, LostError, RefusedError
from gradwire_server.group import Group, Member, Node, Picture

PICTURE = Picture(
    "g1",
    4,
    (Node("a", "10.0.0.1:1", "alpha", (0, 2, 3)), Node("b", "10.0.0.2:1", "beta", (1,))),
)


def member(rank: int) -> Member:
    return Member(rank, "alpha", 100 + rank)


def group() -> Group:
    return Group(PICTURE, 0)


def test_a_picture_says_where_a_rank_sits() -> None:
    assert [PICTURE.node_of(rank) for rank in range(4)] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(((0, 2, 3), ()), id="one sits nowhere"),
        pytest.param(((0, 2, 3), (1, 2)), id="one sits twice"),
        pytest.param(((0, 2, 3), (4,)), id="one is out of range"),
    ],
)
def test_a_picture_in_which_not_every_rank_has_one_seat_is_refused(
    ranks: tuple[tuple[int, ...], ...],
) -> None:
    nodes = tuple(replace(node, ranks=r) for node, r in zip(PICTURE.nodes, ranks, strict=True))
    with pytest.raises(RefusedError, match="expected each of the ranks 0 to 3 on one node"):
        Group(replace(PICTURE, nodes=nodes), 0)


@pytest.mark.parametrize("node", [-1, 2])
def test_a_node_outside_the_picture_is_refused(node: int) -> None:
    with pytest.raises(RefusedError, match=f"node {node} is outside a job of 2 nodes"):
        Group(PICTURE, node)


def test_ranks_are_absent_until_they_are_admitted() -> None:
    job = group()
    job.admit(member(2), PICTURE, 0)
    assert (job.absent, list(job.members), job.peers) == ([0, 3], [2], [1])


def test_a_rank_that_describes_another_job_is_refused() -> None:
    other = replace(PICTURE, nodes=(*PICTURE.nodes[:1], replace(PICTURE.nodes[1], id="c")))
    for picture, node in ((other, 0), (PICTURE, 1)):
        with pytest.raises(RefusedError, match="rank 0 describes generation g1 differently"):
            group().admit(member(0), picture, node)


def test_a_rank_of_another_node_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"rank 1 does not sit at node 0.*\[0, 2, 3\]"):
        group().admit(member(1), PICTURE, 0)


def test_a_second_process_of_the_same_rank_is_refused_and_both_are_named() -> None:
    job = group()
    job.admit(member(2), PICTURE, 0)
    second = Member(2, "alpha", 999)
    with pytest.raises(RefusedError, match=r"pid 102 on alpha.* already .*pid 999 on alpha"):
        job.admit(second, PICTURE, 0)
    assert job.members == {2: member(2)}


def test_a_rank_that_has_left_does_not_come_back_into_the_same_generation() -> None:
    job = group()
    job.admit(member(2), PICTURE, 0)
    job.depart(2, 0)
    with pytest.raises(RefusedError, match="rank 2 has left this generation"):
        job.admit(member(2), PICTURE, 0)
    assert job.absent == [0, 3]


@pytest.mark.parametrize("rank", [1, 2])
def test_collectives_complete_up_to_the_last_that_a_rank_took_part_in(rank: int) -> None:
    job = group()
    job.depart(rank, 5)
    job.check(4)
    with pytest.raises(
        LostError, match=f"round 5 can't complete: rank {rank} left .* after 5 c"
    ):
        job.check(5)


def test_the_first_failure_stands() -> None:
    job = group()
    first = LostError("first")
    assert job.fail(first)
    assert not job.fail(LateError("second"))
    assert job.failure is first


def test_ranks_are_described_by_process_where_it_is_known() -> None:
    job = group()
    job.admit(member(2), PICTURE, 0)
    assert job.describe([0, 2]) == "rank 0, rank 2 (pid 102 on alpha)"


def test_a_world_size_of_four_billion_costs_nothing_to_refuse() -> None:
    nodes = (Node("a", "10.0.0.1:1", "host", (0, 1)),)
    with pytest.raises(RefusedError, match="ranks 0 to 4294967294"):
        Picture("generation", 4_294_967_295, nodes).check()


def test_no_host_name_steers_a_terminal_in_an_error() -> None:
    evil = "al\x1b[31m\npha"
    assert str(Member(1, evil, 7)) == "rank 1 (pid 7 on al\ufffd[31m\ufffdpha)"
    nodes = tuple(replace(node, host=evil) for node in PICTURE.nodes)
    assert replace(PICTURE, nodes=nodes).describe(0).isprintable()
