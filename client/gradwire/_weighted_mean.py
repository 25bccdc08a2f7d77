"""A mean in which ranks count for more or less, in a process group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    import torch


def weighted_mean(
    tensor: torch.Tensor,
    weight: float,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
) -> dist.Work | None:
    """The mean of the ranks' tensors by their weights, in place, in a group of "grpc".

    The sum of weight x tensor over the sum of the weights, as Session.all_reduce has it: with
    each rank's number of samples for its weight, the mean over all samples. A rank of weight 0
    brings nothing. With async_op, returns the work, as torch.distributed.all_reduce does.

    Raises TypeError for another backend's group or tensor, and ValueError for a weight that is
    neither 0 nor 2^-32 to 2^32, or other than 1 with integers. It, or the work's wait(), raises
    ZeroWeightError, a ValueError, where all weights are 0; the group goes on.
    """
    chosen: Any = dist.group.WORLD if group is None else group
    if chosen is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    if chosen is None or chosen.name() != "grpc":
        raise TypeError(f"expected a group of the backend grpc, got {chosen and chosen.name()}")
    work: dist.Work = chosen.weighted_mean(tensor, weight)
    if async_op:
        return work
    work.wait()
    return None
