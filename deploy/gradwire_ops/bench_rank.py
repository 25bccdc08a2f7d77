"""One rank of a benchmark: gloo and Gradwire by turns, on the same tensor. Run by job.running.

Its arguments are the plan, and the daemons' process ids and addresses, both as JSON. Rank 0
writes one JSON object a line, for each size: the fields of a Measurement.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gradwire import Wire
from gradwire_ops import query
from gradwire_ops.bench_plan import Plan
from gradwire_ops.bench_rivals import rivals
from gradwire_ops.bench_row import Measurement
from gradwire_ops.bench_timing import Rivals, median, percentile, race, single_calls

if TYPE_CHECKING:
    from torch import Tensor

ROUND_SECONDS = 0.1
"""A round repeats the all-reduce until it lasts about this long: one is too short for the clock
and for the ranks to be in step."""
MOST_CALLS = 100
WARM_UP_CALLS = 3
MOST_LOST = 0.1
"""By a lossy wire that sends every element, in terms of the norm."""
PATTERN = 5
"""Elements are small integers: sums of them are exact in every dtype and any order."""


def main() -> None:
    """Measure every size of the plan given as argument."""
    plan = Plan.from_json(sys.argv[1])
    daemons = Daemons(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with rivals(plan) as (pair, path):
        for size in plan.sizes:
            measured = _measure(pair, plan, _fresh(plan, size), daemons, path)
            if dist.get_rank() == 0:
                # The report on standard output is this program's interface.
                print(json.dumps(asdict(measured)), flush=True)  # noqa: T201
        dist.barrier()
    dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Daemons:
    """Those of all nodes."""

    pids: list[int]
    """With their workers."""
    addresses: list[str]

    def bytes_sent(self) -> int:
        """To one another, since the job began."""
        jobs = (job for address in self.addresses for job in query.status(address).jobs)
        return sum(link.bytes_sent for job in jobs for link in job.links)


def _measure(
    pair: Rivals, plan: Plan, fresh: Tensor, daemons: Daemons, path: str
) -> Measurement:
    """The same on all ranks, but for the times of single calls, which are each rank's own."""
    if plan.is_lossy:
        _compare_roughly(pair, plan, fresh)
    else:
        _compare(pair, fresh)
    once = race(pair, fresh, 1, WARM_UP_CALLS, daemons.pids)
    quickest = min(median(once.ours), median(once.gloo))
    calls = min(_most_calls(plan, fresh), math.ceil(ROUND_SECONDS / quickest))
    dist.barrier()
    sent = daemons.bytes_sent()
    measured = race(pair, fresh, plan.repeat, calls, daemons.pids)
    dist.barrier()
    sent = daemons.bytes_sent() - sent
    ours, gloo = single_calls(pair, fresh)
    reduced = fresh.nbytes * calls * plan.repeat
    return Measurement(
        size_bytes=fresh.nbytes,
        path=path,
        seconds=median(measured.ours),
        gloo_seconds=median(measured.gloo),
        daemon_cpu_seconds_per_gigabyte=measured.cpu_seconds / plan.nodes / reduced * 1e9,
        p50_seconds=percentile(ours, 0.5),
        p99_seconds=percentile(ours, 0.99),
        gloo_p50_seconds=percentile(gloo, 0.5),
        gloo_p99_seconds=percentile(gloo, 0.99),
        wire_bytes=sent / plan.nodes / (calls * plan.repeat),
    )


def _fresh(plan: Plan, size: int) -> Tensor:
    dtype: torch.dtype = getattr(torch, plan.dtype)
    count = size // dtype.itemsize
    if plan.is_lossy:
        # As gradients are: what a codec costs may depend on the numbers.
        return torch.randn(count, generator=torch.Generator().manual_seed(dist.get_rank())).to(
            dtype
        )
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


def _compare(pair: Rivals, fresh: Tensor) -> None:
    """Warm both up, and see that they agree."""
    expected, tensor = fresh.clone(), fresh.clone()
    pair.gloo(expected)
    pair.ours(tensor)
    # A mean is rounded in its division; gloo's stand-in may round once more.
    tolerance = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0
    if not torch.allclose(tensor, expected, rtol=tolerance, atol=0):
        wrong = int((tensor != expected).nonzero()[0])
        raise SystemExit(
            f"results differ at element {wrong} of {len(tensor)}: "
            f"expected {expected[wrong]} from gloo, got {tensor[wrong]}"
        )


def _compare_roughly(pair: Rivals, plan: Plan, fresh: Tensor) -> None:
    """Warm both up, and see that they agree as far as the wire allows, and all ranks quite."""
    expected, tensor = fresh.clone(), fresh.clone()
    pair.gloo(expected)
    pair.ours(tensor)
    lost = ((tensor - expected).norm() / expected.norm()).item()
    if lost > MOST_LOST and Wire.of(plan.wire).name != "topk":
        raise SystemExit(f"results differ by {lost:.3f} of their norm, at most {MOST_LOST}")
    digests: list[int] = [0] * plan.ranks
    dist.all_gather_object(digests, zlib.crc32(tensor.view(torch.uint8).numpy().data))
    if len(set(digests)) != 1:
        raise SystemExit(f"the ranks have different bits: {digests}")


if __name__ == "__main__":
    main()
