"""What `gradwire bench` lets run against each other: a collective of ours, and gloo's."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

import gradwire
from gradwire_ops.bench_timing import Rivals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from gradwire_ops.bench_plan import Plan
    from gradwire_ops.bench_timing import AllReduce

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}


@contextmanager
def rivals(plan: Plan) -> Iterator[tuple[Rivals, str]]:
    """Both, and how tensors reach our daemon. Gloo's is the default group."""
    if plan.path == "session":
        with gradwire.connect(wire=plan.wire) as session:
            # What is lost is fed back to what has a name, as with the hook.
            named = plan.is_lossy

            def ours(tensor: Tensor) -> None:
                name = f"bench {tensor.numel()}" if named else None
                session.all_reduce(tensor, op=plan.op, name=name).wait()

            yield Rivals(ours, _gloo(plan)), session.path
        return
    os.environ["GRADWIRE_WIRE"] = plan.wire
    group = dist.new_group(backend="grpc")
    assert group is not None, "a group of all ranks has this one"  # noqa: S101
    yield Rivals(_collective(plan.op, group), _gloo(plan)), str(group.daemon_path)
    dist.destroy_process_group(group)


def _gloo(plan: Plan) -> AllReduce:
    if plan.op != "mean":
        return _collective(plan.op, dist.group.WORLD)

    def mean(tensor: Tensor) -> None:
        # gloo has no mean; this is what DDP does with it.
        dist.all_reduce(tensor)
        tensor.div_(plan.ranks)

    return mean


def _collective(name: str, group: dist.ProcessGroup | None) -> AllReduce:
    """A collective of c10d, in place; this rank's part of a tensor is the one of its number."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def gather(tensor: Tensor) -> None:
        part = tensor.chunk(ranks)[rank]
        dist.all_gather_single(tensor, part, group=group)

    def scatter(tensor: Tensor) -> None:
        part = tensor.chunk(ranks)[rank]
        dist.reduce_scatter_single(part, tensor, group=group)

    def broadcast(tensor: Tensor) -> None:
        dist.broadcast(tensor, 0, group=group)

    def reduce(tensor: Tensor) -> None:
        dist.all_reduce(tensor, _OPS[name], group=group)

    others = {"all-gather": gather, "reduce-scatter": scatter, "broadcast": broadcast}
    return others.get(name, reduce)
