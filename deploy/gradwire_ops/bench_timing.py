"""How long all-reduces take, and what their daemons spend on them. For every rank at once."""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    AllReduce: TypeAlias = Callable[[Tensor], object]

BLOCK_CALLS = 25
"""So many calls of one rival that are timed one by one, then so many of the other."""
BLOCKS_BY_SIZE = ((256 << 10, 8), (1 << 20, 2))
"""Blocks of each rival, for tensors of at most this size; none for larger ones."""


@dataclass(frozen=True, slots=True)
class Rivals:
    """The two that are compared."""

    ours: AllReduce
    gloo: AllReduce

    def in_turn(self, number: int) -> tuple[AllReduce, AllReduce]:
        """Who goes first goes second the next time: what one leaves behind, both find."""
        return (self.ours, self.gloo) if number % 2 else (self.gloo, self.ours)


@dataclass(frozen=True, slots=True)
class Lap:
    """Calls in a row."""

    seconds: float
    """Of one call, on the slowest rank."""
    cpu_seconds: float
    """Of the daemons, in all calls together."""


@dataclass(frozen=True, slots=True)
class Race:
    """Laps of both, round by round."""

    ours: list[Lap]
    gloo: list[Lap]

    @property
    def cpu_seconds(self) -> float:
        """Of the daemons, for all of our laps."""
        return math.fsum(lap.cpu_seconds for lap in self.ours)


def race(
    rivals: Rivals, fresh: Tensor, rounds: int, calls: int, daemons: Sequence[int]
) -> Race:
    """So many rounds of so many calls each; `daemons` are process ids."""
    tensor = fresh.clone()
    laps: dict[AllReduce, list[Lap]] = {rivals.ours: [], rivals.gloo: []}
    for number in range(rounds):
        for all_reduce in rivals.in_turn(number):
            tensor.copy_(fresh)
            laps[all_reduce].append(_lap(all_reduce, tensor, calls, daemons))
    return Race(laps[rivals.ours], laps[rivals.gloo])


def _lap(all_reduce: AllReduce, tensor: Tensor, calls: int, daemons: Sequence[int]) -> Lap:
    spent = cpu_seconds(daemons)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        all_reduce(tensor)
    seconds = torch.tensor((time.perf_counter() - began) / calls, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return Lap(seconds.item(), cpu_seconds(daemons) - spent)


def single_calls(rivals: Rivals, fresh: Tensor) -> tuple[list[float], list[float]]:
    """Seconds of calls timed one by one on this rank: ours, gloo's; none for large tensors."""
    times: dict[AllReduce, list[float]] = {rivals.ours: [], rivals.gloo: []}
    size = fresh.nbytes
    blocks = next((blocks for most, blocks in BLOCKS_BY_SIZE if size <= most), 0)
    tensor = fresh.clone()
    for number in range(blocks):
        for all_reduce in rivals.in_turn(number):
            dist.barrier()
            for _ in range(BLOCK_CALLS):
                tensor.copy_(fresh)
                began = time.perf_counter()
                all_reduce(tensor)
                times[all_reduce].append(time.perf_counter() - began)
    return times[rivals.ours], times[rivals.gloo]


def median(laps: Sequence[Lap]) -> float:
    """Seconds of one call, in the round of the middle."""
    return statistics.median(lap.seconds for lap in laps)


def percentile(samples: Sequence[float], share: float) -> float | None:
    """The smallest sample that this share of them do not exceed; None where there are none."""
    if not samples:
        return None
    return sorted(samples)[max(math.ceil(share * len(samples)) - 1, 0)]


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of these processes together, all their threads, to the nanosecond.

    The kernel's clock of a process: /proc has the same figure, in hundredths of a second.
    Raises OSError where one has ended.
    """
    return math.fsum(time.clock_gettime(_clock(pid)) for pid in pids)


def _clock(pid: int) -> int:
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, os.strerror(error), f"process {pid}")
    return clock.value
