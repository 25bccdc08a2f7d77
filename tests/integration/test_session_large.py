from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch

if TYPE_CHECKING:
    from gradwire import Session
    from gradwire_ops.cluster import Cluster

InProcesses: TypeAlias = Callable[..., list[Any]]

log = logging.getLogger(__name__)

MB = 1_000_000
STAND_IN = 300 * MB
"""Elements of fp16, 600 MB."""
FULL = 1_100 * MB
"""Elements of fp16, 2.2 GB: more than 2^31 bytes."""
EXTRA = 2**30
"""Index of the fp16 element at byte 2^31."""


def reset_peak(process: int | str = "self") -> int:
    """Forget the peak of the resident size; the size now, in bytes."""
    Path(f"/proc/{process}/clear_refs").write_text("5")
    return memory(process, "VmRSS")


def memory(process: int | str, field: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    kilobytes = next(line for line in lines if line.startswith(f"{field}:")).split()[1]
    return 1024 * int(kilobytes)


def reduce_large(session: Session, count: int) -> tuple[dict[int, float], int, int]:
    """Results at the sentinels, how many others are wrong, and the peak of extra memory."""
    tensor = torch.full((count,), session.rank + 1.0, dtype=torch.float16)
    places = {0, 1, count // 2, count - 2, count - 1}
    places |= {place for place in range(EXTRA - 2, EXTRA + 3) if place < count}
    sentinels = sorted(places)
    for number, place in enumerate(sentinels):
        tensor[place] = 100.0 * (number + 1) + session.rank
    before = reset_peak()
    session.all_reduce(tensor).wait()
    extra = memory("self", "VmHWM") - before
    results = {number: tensor[place].item() for number, place in enumerate(sentinels)}
    wrong = 0
    for part in tensor.split(64 * MB):
        wrong += int((part != 1.5).count_nonzero())
    return results, wrong - len(sentinels), extra


def check(in_processes: InProcesses, daemons: Cluster, count: int, patience: float) -> None:
    pids = [daemon.pid for daemon in daemons.daemons[:2]]
    before = [reset_peak(pid) for pid in pids]
    results = in_processes((1, 1), reduce_large, count, patience=patience)
    daemon_extra = [memory(pid, "VmHWM") - rss for pid, rss in zip(pids, before, strict=True)]
    rank_extra = [extra for _, _, extra in results]
    for sentinels, wrong, _ in results:
        assert sentinels == {number: 100.0 * (number + 1) + 0.5 for number in sentinels}
        assert wrong == 0
    used = f"{2 * count // MB} MB; extra MB: daemons {[one // MB for one in daemon_extra]}"
    used += f", ranks {[one // MB for one in rank_extra]}"
    log.info(used)
    # The case allows twice the tensor. Chunks in flight are what it takes.
    assert max(daemon_extra) < 400 * MB, used
    assert max(rank_extra) < 200 * MB, used


@pytest.mark.case("M33")
def test_600_megabytes_come_back_exact_and_take_little_memory(
    in_processes: InProcesses, daemons: Cluster
) -> None:
    check(in_processes, daemons, STAND_IN, 60.0)


@pytest.mark.case("M33")
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    os.environ.get("GRADWIRE_TEST_LARGE") != "1",
    reason="takes 10 GB of memory and a minute: set GRADWIRE_TEST_LARGE=1",
)
def test_more_than_two_to_the_31_bytes(in_processes: InProcesses, daemons: Cluster) -> None:
    check(in_processes, daemons, FULL, 500.0)
