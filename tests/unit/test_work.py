"""Works: how torch hears of a collective's end."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from gradwire import LostError, RoundTimeoutError
from gradwire._deadlines import Deadlines
from gradwire._result import Result
from gradwire._work import Patience, Task, Work, Works

PATIENCE = 10.0
ONE = torch.ones(1)


def part() -> Result[Any]:
    return Result(lambda *_: None)


def patience(seconds: float, watch: Deadlines | None = None) -> Patience:
    deadline = time.monotonic() + seconds
    return Patience(seconds, "call", deadline, watch, lambda: None)


def test_a_work_ends_with_its_last_part_and_finishes_once() -> None:
    parts, finished = [part(), part()], []
    work = Work(Task("gather", parts, [ONE], lambda: finished.append(1)), patience(PATIENCE))
    parts[0].settle(lambda: None)
    assert not work.is_completed()
    parts[1].settle(lambda: None)
    assert work.wait()
    assert work.is_success()
    assert work.result() == [ONE]
    assert finished == [1]
    assert work.get_future().wait() == [ONE]


def test_a_work_without_parts_has_ended() -> None:
    assert Work(Task("all_to_all", []), patience(PATIENCE)).is_completed()


def test_the_first_error_is_the_works() -> None:
    parts = [part(), part()]
    work = Work(Task("gather", parts), patience(PATIENCE))
    future = work.get_future()
    parts[1].settle(LostError("rank 2 is gone"))
    with pytest.raises(LostError, match="rank 2 is gone"):
        work.wait()
    assert isinstance(work.exception(), LostError)
    with pytest.raises(RuntimeError, match="rank 2 is gone"):
        future.wait()
    parts[0].settle(lambda: None)
    assert not work.is_success()


def test_an_error_while_it_finishes_is_the_works() -> None:
    def fail() -> None:
        raise ValueError("no room")

    one = part()
    work = Work(Task("gather", [one], finish=fail), patience(PATIENCE))
    one.settle(lambda: None)
    with pytest.raises(ValueError, match="no room"):
        work.wait()


def test_a_wait_that_is_too_short_leaves_the_work_going_on() -> None:
    one = part()
    work = Work(Task("gather", [one]), patience(PATIENCE))
    with pytest.raises(RoundTimeoutError, match=r"0\.01 s, the timeout of this wait"):
        work.wait(timedelta(seconds=0.01))
    one.settle(lambda: None)
    assert work.wait()


def test_who_waits_for_the_future_in_native_code_hears_of_the_deadline() -> None:
    work = Work(Task("gather", [part()]), patience(0.01, Deadlines()))
    with pytest.raises(RuntimeError, match=r"gather: no result within 0\.01 s"):
        torch.futures.Future.wait(work.get_future())


def test_what_is_chained_to_a_works_future_may_wait_for_another() -> None:
    first, second = part(), part()
    works = [Work(Task("gather", [one], [ONE]), patience(PATIENCE)) for one in (first, second)]
    chained = works[0].get_future().then(lambda _: works[1].wait())
    first.settle(lambda: None)
    second.settle(lambda: None)
    assert chained.wait() is True


def test_several_works_are_waited_for_as_one() -> None:
    parts = [part(), part()]
    works = Works([Work(Task("gather", [one], [ONE]), patience(PATIENCE)) for one in parts])
    assert not works.is_completed()
    for one in parts:
        one.settle(lambda: None)
    assert works.wait()
    assert works.is_success()
    assert works.get_future().wait() == [ONE, ONE]


def test_deadlines_come_in_their_order_and_the_thread_ends_with_the_last() -> None:
    expired: list[str] = []
    done = threading.Event()

    class Late:
        def __init__(self, name: str) -> None:
            self.name = name

        def expire(self) -> None:
            expired.append(self.name)
            if len(expired) == 2:
                done.set()

    deadlines, now = Deadlines(), time.monotonic()
    second, first, never = Late("second"), Late("first"), Late("never")
    deadlines.add(now + 0.02, second)
    deadlines.add(now + 0.01, first)
    deadlines.add(now + PATIENCE, never)
    assert done.wait(PATIENCE)
    assert expired == ["first", "second"]
    deadlines.clear()
