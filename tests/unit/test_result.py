from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire._result import Result

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 10.0
ONE = torch.ones(1)


def future() -> Result[torch.Tensor]:
    """One whose caller need not listen: it is settled by the test."""
    return Result(lambda *_: None)


def refuse() -> torch.Tensor:
    raise ValueError("could not be written back")


def test_who_waits_gets_the_tensor() -> None:
    result = future()
    result.settle(lambda: ONE)
    assert result.wait() is ONE


@pytest.mark.parametrize("outcome", [refuse, ValueError("could not be written back")])
def test_who_waits_hears_of_an_error(
    outcome: Callable[[], torch.Tensor] | Exception,
) -> None:
    result = future()
    result.settle(outcome)
    with pytest.raises(ValueError, match="could not be written back"):
        result.wait()


def test_who_waits_listens_for_results_meanwhile() -> None:
    result: Result[torch.Tensor] = Result(lambda waited, _: waited.settle(lambda: ONE))
    assert result.wait() is ONE


def test_a_future_that_nobody_chained_to_is_resolved_on_the_spot() -> None:
    threads: list[threading.Thread] = []
    result = future()

    def outcome() -> torch.Tensor:
        threads.append(threading.current_thread())
        return ONE

    result.settle(outcome)
    assert threads == [threading.current_thread()]


def test_what_is_chained_may_itself_wait_for_a_later_collective() -> None:
    """As PowerSGD does: the thread that listens for results must be free for the second."""
    first, second = future(), future()
    chained = first.then(lambda _: second.wait() + 1)
    first.settle(lambda: ONE)
    second.settle(lambda: ONE)
    assert chained.wait().tolist() == [2.0]


def test_many_chains_may_wait_at_once() -> None:
    results = [future() for _ in range(40)]
    last = future()
    chained = [result.then(lambda _: last.wait() + 1) for result in results]
    for result in results:
        result.settle(lambda: ONE)
    last.settle(lambda: ONE)
    assert [future.wait().item() for future in chained] == [2.0] * 40


def test_a_callback_is_called_once_the_result_is_there() -> None:
    called = threading.Event()
    result = future()
    result.add_done_callback(lambda _: called.set())
    assert not called.is_set()
    result.settle(lambda: ONE)
    assert called.wait(PATIENCE)


def test_an_error_reaches_what_is_chained() -> None:
    result = future()
    chained = result.then(lambda done: done.value())
    result.settle(ValueError("lost"))
    with pytest.raises(Exception, match="lost"):
        chained.wait()
