from __future__ import annotations

import os
import time

import pytest

from gradwire_ops.bench_timing import Rivals, cpu_seconds, percentile


def test_who_goes_first_goes_second_the_next_time() -> None:
    def ours(_: object) -> None: ...
    def gloo(_: object) -> None: ...

    rivals = Rivals(ours, gloo)
    firsts = [rivals.in_turn(number)[0] for number in range(4)]
    assert firsts == [gloo, ours, gloo, ours]
    assert {*rivals.in_turn(0)} == {*rivals.in_turn(1)} == {ours, gloo}


@pytest.mark.parametrize(("share", "sample"), [(0.5, 100), (0.99, 198), (1.0, 200), (0.0, 1)])
def test_a_percentile_is_a_sample(share: float, sample: int) -> None:
    assert percentile([float(value) for value in range(200, 0, -1)], share) == sample


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile([], 0.5) is None


def test_cpu_time_is_what_the_processes_spent_together() -> None:
    before = time.process_time()
    twice = cpu_seconds([os.getpid(), os.getpid()]) / 2
    assert before <= twice <= time.process_time()


def test_the_cpu_time_of_nobody_is_an_error() -> None:
    with pytest.raises(OSError, match="process 4194304"):
        cpu_seconds([1 << 22])
