from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops import query

if TYPE_CHECKING:
    from gradwire import Session
    from gradwire_ops.cluster import Cluster

InThreads: TypeAlias = Callable[..., list[Any]]
Connect: TypeAlias = "Callable[..., Session]"

NEWS_SECONDS = 5.0
SHM = "/dev/shm"  # noqa: S108 - where arenas are


@pytest.fixture
def alone(daemons: Cluster) -> Connect:
    """Connects a world of one."""
    return partial(
        gradwire.connect,
        store=dist.HashStore(),
        rank=0,
        world_size=1,
        daemon=daemons.addresses[0],
    )


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + NEWS_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_session_says_where_it_sits(in_threads: InThreads, daemons: Cluster) -> None:
    def work(session: Session) -> tuple[Any, ...]:
        place = (session.rank, session.world_size, session.node, session.nodes)
        return *place, session.daemon, session.path

    first, second, third = in_threads((2, 1), work)
    assert first == (0, 3, 0, 2, daemons.addresses[0], "shared_memory")
    assert second == (1, 3, 0, 2, daemons.addresses[0], "shared_memory")
    assert third == (2, 3, 1, 2, daemons.addresses[1], "shared_memory")


def test_a_closed_session_raises_and_may_be_closed_again(alone: Connect) -> None:
    session = alone()
    session.close()
    session.close()
    with pytest.raises(gradwire.LostError, match="closed"):
        session.all_reduce(torch.ones(1))
    assert "over" in repr(session)


def test_leaving_the_context_closes_the_session_even_with_an_error(alone: Connect) -> None:
    def script(session: Session) -> None:
        with session:
            assert "open" in repr(session)
            raise KeyError("the script's own")

    session = alone()
    with pytest.raises(KeyError, match="the script's own"):
        script(session)
    with pytest.raises(gradwire.LostError, match="closed"):
        session.all_reduce(torch.ones(1))


def test_a_rank_that_has_left_is_said_to_have_left(in_threads: InThreads) -> None:
    left, seen = threading.Event(), threading.Event()

    def work(session: Session) -> dict[int, tuple[bool, bool]]:
        session.all_reduce(torch.ones(1)).wait()
        if session.rank == 1:
            session.close()
            left.set()
            return {}
        assert left.wait(10)
        if session.rank == 0:
            found = query.status(session.daemon).jobs
            job = next(each for each in found if each.generation == session.generation)
            seen.set()
            return {rank.rank: (rank.joined, rank.left) for rank in job.ranks}
        assert seen.wait(10)
        return {}

    ranks, *_ = in_threads((2, 1), work)
    assert ranks == {0: (True, False), 1: (False, True)}


# What is chained to a result has a thread of its own, and is in torch when the script ends.
ENDING = """
import sys, threading, time
import torch, torch.distributed as dist
import gradwire

began = threading.Event()

def chained(future):
    began.set()
    end, matrix = time.monotonic() + 0.7, torch.ones(256, 256)
    while time.monotonic() < end:
        matrix @ matrix
    print("done")

address = sys.argv[1]
with gradwire.connect(store=dist.HashStore(), rank=0, world_size=1, daemon=address) as session:
    session.all_reduce(torch.ones(1)).then(chained)
    assert began.wait(10)
"""


def test_a_script_ends_in_good_order_whatever_its_closed_session_is_at(
    daemons: Cluster,
) -> None:
    """Python ends such a thread in the middle of C++: `terminate called without ...`."""
    command = [sys.executable, "-c", ENDING, daemons.addresses[0]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def test_closing_fails_what_has_no_result(in_threads: InThreads) -> None:
    closed = threading.Event()

    def work(session: Session) -> str:
        if session.rank == 1:
            assert closed.wait(10)
            return ""
        future = session.all_reduce(torch.ones(1))
        session.close()
        with pytest.raises(gradwire.LostError) as caught:
            future.wait()
        closed.set()
        return str(caught.value)

    text, _ = in_threads((1, 1), work)
    assert "closed" in text
    assert "collective 0 " in text


def test_a_rank_that_leaves_does_not_harm_what_it_had_brought(in_threads: InThreads) -> None:
    brought = threading.Event()

    def work(session: Session) -> float:
        if session.rank == 0:
            future = session.all_reduce(torch.tensor(1.0))
            brought.set()
            return future.wait().item()
        assert brought.wait(10)
        return session.all_reduce(torch.tensor(session.rank + 1.0)).wait().item()

    assert in_threads((1, 2), work) == [2.0] * 3


def test_who_brings_more_than_a_rank_that_left_hears_who_it_was(in_threads: InThreads) -> None:
    left = threading.Event()

    def work(session: Session) -> str:
        session.all_reduce(torch.ones(1)).wait()
        if session.rank == 1:
            session.close()
            left.set()
            return ""
        assert left.wait(10)
        with pytest.raises(gradwire.LostError) as caught:
            session.all_reduce(torch.ones(1)).wait()
        return str(caught.value)

    for text in in_threads((1, 1, 1), work)[::2]:
        assert "rank 1" in text


def test_nothing_is_left_of_a_session_that_was_closed(alone: Connect, daemons: Cluster) -> None:
    def ours() -> set[str]:
        return {path.name for path in Path(SHM).glob("gradwire-*")}

    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name in names]

    names = ("gradwire-mover", "gradwire-listener")
    before, running = ours(), len(threads())
    with alone() as session:
        session.all_reduce(torch.ones(1000)).wait()
        new = ours() - before
        assert len({name for name in new if not name.endswith("-keep")}) == 1
        generation = session.generation
    jobs = query.status(daemons.addresses[0]).jobs
    assert soon(lambda: ours() <= before)
    assert soon(lambda: len(threads()) <= running)
    assert generation not in {
        job.generation for job in query.status(daemons.addresses[0]).jobs
    }, jobs


def test_one_process_connects_again_through_the_same_store(alone: Connect) -> None:
    generations = set()
    for _ in range(5):
        with alone() as session:
            generations.add(session.generation)
            assert session.all_reduce(torch.tensor(3.0)).wait().item() == 3.0
    assert len(generations) == 5


def test_two_sessions_of_one_process_do_not_meet(alone: Connect) -> None:
    with alone() as one, alone() as other:
        assert one.generation != other.generation
        assert one.all_reduce(torch.tensor(1.0), op="sum").wait().item() == 1.0
        assert other.all_reduce(torch.tensor(2.0), op="sum").wait().item() == 2.0


@pytest.mark.parametrize(
    ("tensor", "options", "error", "words"),
    [
        (torch.ones(2), {"op": "average"}, ValueError, ["one of", "mean", "'average'"]),
        (torch.ones(2), {"weight": 1e-20}, ValueError, ["weight of 0, or", "1e-20"]),
        (torch.ones(2), {"weight": -1.0}, ValueError, ["weight of 0, or", "-1.0"]),
        (torch.ones(2), {"weight": float("nan")}, ValueError, ["weight of 0, or", "nan"]),
        (torch.ones(2), {"weight": float("inf")}, ValueError, ["weight of 0, or", "inf"]),
        (torch.ones(2), {"op": "sum", "weight": 2.0}, ValueError, ["weight", "mean", "sum"]),
        (torch.arange(2), {"weight": 2.0}, ValueError, ["weight", "int64"]),
        (torch.ones(2).to_sparse(), {}, TypeError, ["sparse", "to_dense"]),
        (torch.ones(2, device="meta"), {}, TypeError, ["meta", "CPU"]),
        (torch.ones(2, dtype=torch.bool), {}, TypeError, ["bool", "mean", "number"]),
    ],
)
def test_what_cannot_be_reduced_is_refused_and_the_session_goes_on(
    alone: Connect,
    tensor: torch.Tensor,
    options: dict[str, Any],
    error: type[Exception],
    words: list[str],
) -> None:
    with alone() as session:
        with pytest.raises(error) as caught:
            session.all_reduce(tensor, **options)
        assert session.all_reduce(torch.tensor(1.0)).wait().item() == 1.0
    for word in words:
        assert word in str(caught.value)


@pytest.mark.case("P10")
def test_a_wire_that_does_not_exist_is_refused(alone: Connect) -> None:
    with pytest.raises(gradwire.ConnectError, match="exact"):
        alone(wire="int7")


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "warn_after"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_times_must_be_above_zero(alone: Connect, name: str, seconds: float) -> None:
    with pytest.raises(gradwire.ConnectError, match=name):
        alone(**{name: seconds})


@pytest.mark.parametrize("late_seconds", [0.0, 0.5])
def test_a_rank_may_leave_before_what_it_has_brought_is_complete(
    in_threads: InThreads, late_seconds: float
) -> None:
    """The others get their result: all that it takes is there."""

    def work(session: Session) -> list[float]:
        session.all_reduce(torch.ones(1), "sum").wait()
        if session.rank == 0:
            session.all_reduce(torch.ones(5), "sum")
            time.sleep(0.2)
            session.close()
            return [2.0]
        time.sleep(late_seconds)
        result: list[float] = session.all_reduce(torch.ones(5), "sum").wait().unique().tolist()
        return result

    assert in_threads((1, 1), work, timeout=30.0) == [[2.0], [2.0]]
