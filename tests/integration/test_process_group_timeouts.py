"""The backend "grpc": what is late, given up, or gone."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
import torch.distributed as dist

import gradwire

if TYPE_CHECKING:
    from collections.abc import Callable

InGroups: TypeAlias = "Callable[..., list[Any]]"

LAYOUTS = [[3], [2, 1]]

layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["one-node", "two-nodes"])


def timed_out(group: dist.ProcessGroup) -> list[tuple[float, str]]:
    groups = [dist.new_group() for _ in range(3)]
    if group.rank():
        time.sleep(6)
        return []
    errors: list[tuple[float, str]] = []
    for number, pair in enumerate(groups):
        timeout = None if number else timedelta(seconds=2)
        if timeout is None:
            pair.set_timeout(timedelta(seconds=1))
        begin = time.monotonic()
        if number < 2:
            with pytest.raises(gradwire.RoundTimeoutError) as caught:
                dist.barrier(pair, timeout=timeout)
            text = str(caught.value)
        else:
            work = dist.all_reduce(torch.ones(2), group=pair, async_op=True)
            assert work is not None
            future = work.get_future()
            # As DDP waits: in C++, where nobody looks at the clock.
            with pytest.raises(RuntimeError) as told:
                torch.futures.Future.wait(future)
            text = str(told.value)
        errors.append((time.monotonic() - begin, text))
    return errors


@pytest.mark.case("R04")
def test_timeouts_of_call_and_group_are_honoured_and_quoted(in_groups: InGroups) -> None:
    (call, changed, future), _ = in_groups([2], timed_out)
    assert call[0] == pytest.approx(2, abs=0.5)
    assert "2 s, the timeout of this call" in call[1]
    assert changed[0] == pytest.approx(1, abs=0.5)
    assert "1 s, the timeout of this group" in changed[1]
    assert future[0] == pytest.approx(1, abs=0.5)
    assert "1 s, the timeout of this group" in future[1]


def given_up(group: dist.ProcessGroup) -> list[float]:
    pair, tensor = dist.new_group(timeout=timedelta(seconds=30)), torch.ones(100_000)
    if group.rank():
        time.sleep(1.5)
        with pytest.raises(gradwire.LostError):
            dist.all_reduce(tensor, group=pair)
    else:
        pair.set_timeout(timedelta(seconds=0.5))
        first = dist.all_reduce(tensor, group=pair, async_op=True)
        second = dist.all_reduce(torch.ones(2), group=pair, async_op=True)
        assert first is not None
        assert second is not None
        with pytest.raises(gradwire.RoundTimeoutError, match="With this the group is over"):
            first.wait()
        tensor.fill_(7)
        for late in (second.wait, lambda: dist.all_reduce(torch.ones(2), group=pair)):
            with pytest.raises(gradwire.AggregationError, match=r"over.*all_reduce: no result"):
                late()
    dist.barrier()
    return list(tensor.unique().tolist())


@pytest.mark.parametrize("layout", [[2], [1, 1]], ids=["one-node", "two-nodes"])
def test_a_collective_that_is_given_up_is_not_written_to_later(
    in_groups: InGroups, layout: list[int]
) -> None:
    assert in_groups(layout, given_up)[0] == [7.0]


def limited(group: dist.ProcessGroup) -> list[str]:
    pair, sparse = dist.new_group(timeout=timedelta(seconds=2)), dist.new_group()
    with pytest.raises(ValueError, match="expected a timeout above 0 s"):
        dist.barrier(timeout=timedelta(0))
    with pytest.raises(ValueError, match="expected a timeout above 0 s"):
        group.gather([torch.ones(1)], torch.ones(1), root=0, timeout=timedelta(0))
    texts = []
    if group.rank() == 0:
        long, short, part = timedelta(seconds=60), timedelta(seconds=1), torch.ones(1)
        calls: list[Callable[[], dist.Work]] = [
            lambda: pair.gather([part, part.clone()], part, root=0, timeout=long),
            lambda: pair.barrier(timeout=long),
            lambda: sparse.allreduce([torch.eye(3).to_sparse()], timeout=short),
        ]
        for call in calls:
            with pytest.raises(gradwire.RoundTimeoutError) as caught:
                call().wait()
            texts.append(str(caught.value))
    else:
        time.sleep(7)
    return texts


def test_no_call_takes_longer_than_its_group_and_none_has_no_time(in_groups: InGroups) -> None:
    (letters, together, sparse), _ = in_groups([2], limited)
    assert "waited 2 s" in letters
    assert "2 s is the timeout of this group" in letters
    assert "2 s" in together
    assert "1 s, the timeout of this call" in sparse


def left_behind(group: dist.ProcessGroup) -> str:
    three = dist.new_group()
    if group.rank() == 1:
        dist.destroy_process_group(three)
        dist.barrier()
        return ""
    dist.barrier()
    time.sleep(0.5)
    with pytest.raises(gradwire.LostError) as caught:
        gradwire.monitored_barrier(three, timedelta(seconds=3), wait_all_ranks=True)
    return str(caught.value)


def test_a_monitored_barrier_blames_nobody_where_the_group_is_over(
    in_groups: InGroups,
) -> None:
    first, _, last = in_groups([3], left_behind)
    for text in (first, last):
        assert "left" in text
        assert "failed to pass" not in text


def watched(group: dist.ProcessGroup) -> str:
    rank = group.rank()
    gradwire.monitored_barrier(timeout=timedelta(seconds=10))
    gradwire.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=True)
    if rank:
        time.sleep(1)
        return ""
    with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier in 200 ms"):
        gradwire.monitored_barrier(timeout=timedelta(seconds=0.2))
    with pytest.raises(RuntimeError) as caught:
        gradwire.monitored_barrier(timeout=timedelta(seconds=0.2), wait_all_ranks=True)
    return str(caught.value)


@layouts
def test_a_monitored_barrier_names_the_missing_ranks(
    in_groups: InGroups, layout: list[int]
) -> None:
    text = in_groups(layout, watched)[0]
    assert text.startswith("Ranks 1, 2 failed to pass monitoredBarrier in 200 ms")


def watched_pair(group: dist.ProcessGroup) -> None:
    pair = dist.new_group([0, 1])
    if group.rank() == 0:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
            gradwire.monitored_barrier(pair, timedelta(seconds=0.2))
    elif group.rank() == 2:
        gradwire.monitored_barrier(pair, timedelta(seconds=0.2))
    dist.barrier()


def test_a_monitored_barrier_of_some_ranks_is_no_matter_of_the_others(
    in_groups: InGroups,
) -> None:
    in_groups([3], watched_pair)
