"""Works: how torch hears of a collective's end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gradwire import LostError, RoundTimeoutError
from gradwire._deadlines import Deadlines
from gradwire._result import Result
from gradwire._work import Patience, Task, Work, Works

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 10.0
ONE = torch.ones(1)


def part() -> Result[Any]:
    return Result(nothing)


def nothing(*_: object) -> None: ...


def patience(
    seconds: float,
    watch: Deadlines | None = None,
    give_up: Callable[[str], None] = nothing,
) -> Patience:
    deadline = time.monotonic() + seconds
    return Patience(seconds, "call", deadline, watch, nothing, give_up)


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


def test_a_work_that_is_given_up_ends_the_session_first_and_has_one_error() -> None:
    one = part()
    given_up: list[str] = []

    def give_up(reason: str) -> None:
        given_up.append(reason)
        assert not work.is_completed()
        one.settle(LostError("closed"))

    work = Work(Task("gather", [one]), patience(0.01, give_up=give_up))
    for _ in range(2):
        with pytest.raises(RoundTimeoutError, match="With this the group is over"):
            work.wait()
    assert len(given_up) == 1
    assert given_up[0].startswith("this group is over; gather: no result within 0.01 s")


def test_who_waits_beyond_the_deadline_waits_for_what_is_being_finished() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        raise ValueError("no room")

    one = part()
    work = Work(Task("gather", [one], finish=fail), patience(0.01))
    threading.Thread(target=one.settle, args=(nothing,), daemon=True).start()
    assert begun.wait(PATIENCE)
    threading.Timer(0.1, go_on.set).start()
    with pytest.raises(ValueError, match="no room"):
        work.wait()


def test_letters_that_are_late_say_whose_timeout_it_was() -> None:
    one = part()
    work = Work(Task("gather", [one], timed=True), patience(PATIENCE))
    one.settle(RoundTimeoutError("rank 0 waited 10 s"))
    with pytest.raises(
        RoundTimeoutError,
        match=r"^gather: rank 0 waited 10 s; 10 s is the timeout of this call",
    ):
        work.wait()


def test_only_what_is_received_has_a_source() -> None:
    received = Result[Any](nothing)
    work = Work(Task("recv from any rank", [received], received=True), patience(PATIENCE))
    with pytest.raises(RuntimeError):
        work.source_rank()
    received.settle(lambda: 3)
    assert work.source_rank() == 3
    for parts in ([], [received]):
        other = Work(Task("send to rank 1", parts), patience(PATIENCE))
        with pytest.raises(
            RuntimeError, match="only a recv has a source_rank, and this is send"
        ):
            other.source_rank()


@pytest.mark.parametrize("chained", [False, True])
def test_a_work_that_has_ended_leaves_nothing_to_the_garbage_collector(
    *, chained: bool
) -> None:
    gc.collect()
    gc.disable()
    try:
        tensor, staged, one = torch.ones(1), torch.ones(1), part()
        work = Work(
            Task("gather", [one], [tensor], partial(nothing, staged)), patience(PATIENCE)
        )
        future = work.get_future()
        if chained:
            future = future.then(lambda done: done.value()[0].item())
        one.settle(nothing)
        future.wait()
        gone = [weakref.ref(each) for each in (work, tensor)]
        released = weakref.ref(staged)
        del staged
        assert released() is None
        del work, future, tensor, one
        deadline = time.monotonic() + PATIENCE
        while any(each() is not None for each in gone) and time.monotonic() < deadline:
            time.sleep(0.01)  # The thread that ran what was chained is still ending.
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


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
