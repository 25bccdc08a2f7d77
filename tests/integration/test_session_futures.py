from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

import gradwire

if TYPE_CHECKING:
    from gradwire import Session

InThreads: TypeAlias = Callable[..., list[Any]]
Future: TypeAlias = torch.futures.Future[Any]

MORE_THAN_ALL_SLOTS = 12_000_000
"""fp32 elements: 48 MB, where a rank may have 16 MiB in flight."""


def test_submitting_never_waits_not_even_for_a_free_slot(in_threads: InThreads) -> None:
    submitted = threading.Event()

    def work(session: Session) -> tuple[list[bool], set[float]]:
        if session.rank == 1:
            assert submitted.wait(20), "the other rank hangs in all_reduce"
        tensors = [torch.full((MORE_THAN_ALL_SLOTS,), session.rank + 1.0) for _ in range(2)]
        futures = [session.all_reduce(tensor) for tensor in tensors]
        done = [future.done() for future in futures]
        submitted.set()
        last = futures[-1].wait()
        return done, set(last.unique().tolist())

    first, second = in_threads((1, 1), work)
    assert first == ([False, False], {1.5})
    assert second[1] == {1.5}


def test_the_future_holds_the_tensor_itself(in_threads: InThreads) -> None:
    def work(session: Session) -> bool:
        tensor = torch.ones(3)
        future = session.all_reduce(tensor)
        return future.wait() is tensor and future.value() is tensor and future.done()

    assert in_threads((2,), work) == [True, True]


@pytest.mark.parametrize("buckets", [1, 3, 16, 80])
def test_callbacks_may_wait_for_other_collectives(in_threads: InThreads, buckets: int) -> None:
    """PowerSGD's shape. Ranks may run callbacks in any order, so all bring the same."""

    def work(session: Session) -> list[float]:
        def again(future: Future) -> torch.Tensor:
            tensor = torch.full_like(future.value(), session.rank + 1.0)
            return session.all_reduce(tensor).wait()

        firsts = [
            session.all_reduce(torch.full((9,), session.rank + 1.0)) for _ in range(buckets)
        ]
        chained = [first.then(again) for first in firsts]
        return [future.wait().unique().item() for future in chained]

    assert in_threads((1, 1), work, timeout=3.0) == [[1.5] * buckets] * 2


def nested(session: Session, chains: int) -> set[float]:
    def double(future: Future) -> torch.Tensor:
        doubled: torch.Tensor = 2 * future.value()
        return doubled

    def again(future: Future) -> torch.Tensor:
        tensor = torch.full_like(future.value(), session.rank + 1.0)
        return session.all_reduce(tensor).then(double).wait()

    firsts = [session.all_reduce(torch.full((9,), session.rank + 1.0)) for _ in range(chains)]
    chained = [first.then(again) for first in firsts]
    return {future.wait().unique().item() for future in chained}


def test_callbacks_may_wait_for_what_has_callbacks_itself(in_processes: InThreads) -> None:
    # More than any pool of threads that does not grow.
    assert in_processes((1, 1), nested, 80, patience=15.0) == [{3.0}] * 2


def test_a_chain_of_three_collectives(in_threads: InThreads) -> None:
    def work(session: Session) -> float:
        def grow(future: Future) -> torch.Tensor:
            return session.all_reduce(future.value() + session.rank, op="sum").wait()

        first = session.all_reduce(torch.tensor([session.rank + 0.0]), op="sum")
        value: float = first.then(grow).then(grow).wait().item()
        return value

    # 1, then 1 + 2, then 3 + 4.
    assert in_threads((1, 1), work, timeout=3.0) == [7.0] * 2


def test_futures_are_collected_by_torch(in_threads: InThreads) -> None:
    def work(session: Session) -> list[float]:
        futures = [
            session.all_reduce(torch.tensor(index + session.rank)) for index in (1.0, 2.0)
        ]
        return [future.value().item() for future in torch.futures.collect_all(futures).wait()]

    assert in_threads((2,), work) == [[1.5, 2.5]] * 2


def test_what_is_chained_to_collected_futures_may_wait_too(in_threads: InThreads) -> None:
    def work(session: Session) -> float:
        def again(collected: Future) -> torch.Tensor:
            values = [future.value() for future in collected.value()]
            return session.all_reduce(torch.stack(values).sum()).wait()

        futures = [
            session.all_reduce(torch.tensor(index + session.rank)) for index in (1.0, 2.0)
        ]
        value: float = torch.futures.collect_all(futures).then(again).wait().item()
        return value

    assert in_threads((1, 1), work, timeout=1.0) == [4.0] * 2


def test_done_callbacks_run_once_with_the_result(in_threads: InThreads) -> None:
    def work(session: Session) -> list[float]:
        called, seen = threading.Event(), []

        def note(future: Future) -> None:
            seen.append(future.value().item())
            called.set()

        session.all_reduce(torch.tensor(session.rank + 1.0)).add_done_callback(note)
        assert called.wait(5)
        return seen

    assert in_threads((1, 1), work) == [[1.5]] * 2


def test_an_error_reaches_whoever_is_chained(in_threads: InThreads) -> None:
    def work(session: Session) -> str:
        def never(future: Future) -> float:
            return float(future.value().sum())

        with pytest.raises(RuntimeError, match="round 0:") as caught:
            session.all_reduce(torch.ones(3 + session.rank)).then(never).wait()
        return str(caught.value)

    for text in in_threads((1, 1), work):
        assert "3 x float32" in text
        assert "4 x float32" in text


def test_results_come_in_any_order_that_they_are_waited_for(in_threads: InThreads) -> None:
    def work(session: Session) -> list[set[float]]:
        futures = []
        for index in range(24):
            size = 400_000 * (index % 3)
            futures.append(session.all_reduce(torch.full((size + 1,), index + session.rank)))
        return [set(future.wait().tolist()) for future in reversed(futures)][::-1]

    means = in_threads((1, 1), work)
    # Integers: the mean of n and n + 1 is truncated.
    assert means == [[{index} for index in range(24)]] * 2


def test_several_threads_of_a_rank_may_submit(in_threads: InThreads) -> None:
    """Who is first is not said, so all bring the same shape."""

    def work(session: Session) -> list[float]:
        results: list[float] = []

        def submit() -> None:
            for _ in range(20):
                result = session.all_reduce(torch.tensor(session.rank + 1.0)).wait()
                results.append(result.item())

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return results

    assert in_threads((1, 1), work) == [[1.5] * 80] * 2


def test_stats_count_collectives_bytes_and_time(in_threads: InThreads) -> None:
    def work(session: Session) -> tuple[gradwire.SessionStats, gradwire.SessionStats]:
        before = session.stats
        for count in (10, 0, 1_000_000):
            session.all_reduce(torch.ones(count)).wait()
        with pytest.raises(gradwire.MismatchError):
            session.all_reduce(torch.ones(1 + session.rank, dtype=torch.float64)).wait()
        return before, session.stats

    began = time.monotonic()
    results = in_threads((1, 1), work)
    for rank, (before, after) in enumerate(results):
        assert before == gradwire.SessionStats(0, 0, 0.0)
        assert after.rounds == 4
        assert after.bytes_in == 4_000_040 + 8 * (1 + rank)
        assert 0 < after.seconds_waiting < time.monotonic() - began
