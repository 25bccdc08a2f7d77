"""One rank of a benchmark: gloo and Gradwire by turns, on the same tensor. Run by job.running.

Rank 0 writes one JSON object a line, for each size.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.bench_plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    AllReduce: TypeAlias = Callable[[Tensor], object]

ROUND_SECONDS = 0.1
"""A round repeats the all-reduce until it lasts about this long: one is too short for the clock
and for the ranks to be in step."""
MOST_CALLS = 100
WARM_UP_CALLS = 3
PATTERN = 5
"""Elements are small integers: sums of them are exact in every dtype and any order."""

_GLOO_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


@dataclass(frozen=True, slots=True)
class Rivals:
    """The two that are compared."""

    ours: AllReduce
    gloo: AllReduce


def main() -> None:
    """Measure every size of the plan given as argument."""
    plan = Plan.from_json(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with gradwire.connect() as session:
        rivals = _rivals(session, plan)
        for size in plan.sizes:
            ours, gloo = _measure(rivals, plan, size)
            if dist.get_rank() == 0:
                words = {"size_bytes": size, "seconds": ours, "gloo_seconds": gloo}
                # The report on standard output is this program's interface.
                print(json.dumps({**words, "path": session.path}), flush=True)  # noqa: T201
        dist.barrier()
    dist.destroy_process_group()


def _rivals(session: gradwire.Session, plan: Plan) -> Rivals:
    op = _GLOO_OPS[plan.op]

    def ours(tensor: Tensor) -> None:
        session.all_reduce(tensor, op=plan.op).wait()

    def gloo(tensor: Tensor) -> None:
        dist.all_reduce(tensor, op=op)

    def gloo_mean(tensor: Tensor) -> None:
        # gloo has no mean; this is what DDP does with it.
        dist.all_reduce(tensor)
        tensor.div_(plan.ranks)

    return Rivals(ours, gloo_mean if plan.op == "mean" else gloo)


def _measure(rivals: Rivals, plan: Plan, size: int) -> tuple[float, float]:
    """Seconds of one all-reduce, the median over the rounds: ours, gloo's."""
    fresh = _fresh(plan, size)
    tensor = fresh.clone()
    _compare(rivals, tensor, fresh)
    once = [
        _timed(all_reduce, tensor, fresh, WARM_UP_CALLS)
        for all_reduce in (rivals.gloo, rivals.ours)
    ]
    calls = min(_most_calls(plan, fresh), math.ceil(ROUND_SECONDS / min(once)))
    rounds = [
        [_timed(one, tensor, fresh, calls) for one in (rivals.gloo, rivals.ours)]
        for _ in range(plan.repeat)
    ]
    gloo, ours = zip(*rounds, strict=True)
    return statistics.median(ours), statistics.median(gloo)


def _fresh(plan: Plan, size: int) -> Tensor:
    dtype: torch.dtype = getattr(torch, plan.dtype)
    count = size // dtype.itemsize
    if plan.op == "product":
        # Anything else grows beyond every type within a few calls.
        return torch.ones(count, dtype=dtype)
    return ((torch.arange(count) + dist.get_rank()) % PATTERN).to(dtype)


def _most_calls(plan: Plan, fresh: Tensor) -> int:
    """In place, a sum grows by the number of ranks with each call, and must stay finite."""
    if plan.op != "sum" or plan.ranks == 1 or not fresh.is_floating_point():
        return MOST_CALLS
    room = torch.finfo(fresh.dtype).max / (PATTERN - 1)
    return max(min(MOST_CALLS, int(math.log(room, plan.ranks))), 1)


def _compare(rivals: Rivals, tensor: Tensor, fresh: Tensor) -> None:
    """Warm both up, and see that they agree."""
    rivals.gloo(tensor)
    expected = tensor.clone()
    rivals.ours(tensor.copy_(fresh))
    # A mean is rounded in its division; gloo's stand-in may round once more.
    tolerance = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0
    if not torch.allclose(tensor, expected, rtol=tolerance, atol=0):
        wrong = int((tensor != expected).nonzero()[0])
        raise SystemExit(
            f"results differ at element {wrong} of {len(tensor)}: "
            f"expected {expected[wrong]} from gloo, got {tensor[wrong]}"
        )


def _timed(all_reduce: AllReduce, tensor: Tensor, fresh: Tensor, calls: int) -> float:
    """Seconds of one call, out of this many in a row, on the slowest rank."""
    tensor.copy_(fresh)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        all_reduce(tensor)
    seconds = torch.tensor((time.perf_counter() - began) / calls, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


if __name__ == "__main__":
    main()
