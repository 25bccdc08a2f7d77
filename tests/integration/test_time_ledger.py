"""Where the time of rounds goes, of real jobs: stages add up, and name the right culprit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gradwire_ops import query
from gradwire_ops.cluster import Cluster, cluster
from gradwire_proto.stages import STAGES

if TYPE_CHECKING:
    from gradwire import Session

ThreadsOver = Callable[[Sequence[str]], Callable[..., list[Any]]]

ROUNDS = 20
LATE_SECONDS = 0.5


@pytest.fixture(scope="module", params=[1, 2], ids=["one node", "two nodes"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as running:
        yield running


def ledger(session: Session, address: str) -> tuple[dict[str, float], float]:
    """What this job's node says while the job is there."""
    answer = query.status(address)
    job = next(each for each in answer.jobs if each.world_size == session.world_size)
    return {each.stage: each.seconds for each in job.stages}, job.ledger_seconds


def settled(session: Session, nodes: Cluster) -> list[dict[str, float]]:
    """Of all nodes, once all ranks have the results of all that was before."""
    # Who hands in the second has taken the first: so none of either lasts for long.
    for _ in range(2):
        session.all_reduce(torch.ones(1)).wait()
    return [ledger(session, each)[0] for each in nodes.addresses]


def spent_since(
    before: list[dict[str, float]], after: list[dict[str, float]]
) -> list[dict[str, float]]:
    """Of each node in each stage."""
    return [
        {stage: new[stage] - old[stage] for stage in STAGES}
        for old, new in zip(before, after, strict=True)
    ]


def sizes(nodes: Cluster) -> tuple[int, ...]:
    return (2, 2) if len(nodes.addresses) == 2 else (3,)


@pytest.mark.parametrize("elements", [1000, 3 << 20], ids=["small", "of several chunks"])
@pytest.mark.parametrize("shm", ["shared memory", "stream"])
def test_stages_add_up_to_the_time_of_rounds(
    nodes: Cluster,
    threads_over: ThreadsOver,
    monkeypatch: pytest.MonkeyPatch,
    elements: int,
    shm: str,
) -> None:
    if shm == "stream":
        monkeypatch.setenv("GRADWIRE_SHM", "off")

    def work(session: Session) -> tuple[dict[str, float], float, float, float]:
        tensor = torch.ones(elements)
        # From here on all are there: who came early waited for the others in this one.
        session.all_reduce(torch.ones(1)).wait()
        begun = time.monotonic()
        _, early = ledger(session, nodes.addresses[0])
        for _ in range(ROUNDS):
            session.all_reduce(tensor).wait()
        passed = time.monotonic() - begun
        return *ledger(session, nodes.addresses[0]), early, passed

    results = threads_over(nodes.addresses)(sizes(nodes), work)
    seconds, whole, early, passed = results[0]
    assert tuple(seconds) == STAGES
    assert min(seconds.values()) >= 0
    assert sum(seconds.values()) == pytest.approx(whole, rel=0.02)
    if elements == 1000:
        # One chunk at a time: its time is the caller's, but for what he does between, and for
        # others who hand in before him.
        assert 0.2 * passed < whole - early < 2 * passed
    if len(nodes.addresses) == 1:
        assert seconds["wire"] == seconds["wait_peers"] == 0


@pytest.mark.parametrize("shm", ["shared memory", "stream"])
@pytest.mark.parametrize("late", [0, 1])
def test_waiting_for_a_rank_is_told_from_waiting_for_another_node(
    nodes: Cluster,
    threads_over: ThreadsOver,
    monkeypatch: pytest.MonkeyPatch,
    late: int,
    shm: str,
) -> None:
    if shm == "stream":
        monkeypatch.setenv("GRADWIRE_SHM", "off")

    def work(session: Session) -> list[dict[str, float]]:
        before = settled(session, nodes)
        if session.rank == late:
            time.sleep(LATE_SECONDS)
        session.all_reduce(torch.ones(1000)).wait()
        return spent_since(before, settled(session, nodes))

    here, *elsewhere = threads_over(nodes.addresses)(sizes(nodes), work)[late]
    assert here["wait_local"] > 0.8 * LATE_SECONDS
    assert max(here.values()) == here["wait_local"]
    for other in elsewhere:
        assert other["wait_peers"] > 0.8 * LATE_SECONDS
        assert max(other.values()) == other["wait_peers"]


@pytest.mark.parametrize("late", [0, 1])
def test_more_at_once_than_there_are_slots_wait_for_the_rank_that_is_late(
    nodes: Cluster, threads_over: ThreadsOver, late: int
) -> None:
    many = 100

    def work(session: Session) -> list[dict[str, float]]:
        before = settled(session, nodes)
        if session.rank == late:
            time.sleep(LATE_SECONDS)
        for each in [session.all_reduce(torch.ones(10)) for _ in range(many)]:
            each.wait()
        return spent_since(before, settled(session, nodes))

    here, *elsewhere = threads_over(nodes.addresses)(sizes(nodes), work)[late]
    assert here["wait_local"] > 0.8 * many * LATE_SECONDS
    for other in elsewhere:
        assert other["wait_peers"] > 0.8 * many * LATE_SECONDS
