"""PowerSGD, torch's low-rank compression, over our process group: a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    powerSGD_hook,
)

from gradwire._process_group import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Hook = Callable[[PowerSGDState, dist.GradBucket], torch.futures.Future[torch.Tensor]]

FIRST_START = 2
DEFAULT_START = 1000


def low_rank(
    rank: int = 1,
    *,
    start_iter: int = DEFAULT_START,
    group: dist.ProcessGroup | None = None,
) -> tuple[PowerSGDState, Hook]:
    """State and hook: `model.register_comm_hook(*gradwire.low_rank(rank=2))`.

    Gradients of at least two dimensions are sent as two factors of this rank, once `start_iter`
    steps are over; before that, as without a hook. It goes over `group`, else the default group
    if that is of backend grpc, else a new one of all ranks, which all must then make. Give DDP
    one bucket, `bucket_cap_mb`: with several, ranks come to the second factor in different
    orders. See Vogels et al., "PowerSGD: practical low-rank gradient compression" (2019).

    Raises ValueError for a rank below 1, and for a start before step 2: DDP builds its buckets
    anew after the first step, and what is kept for one would meet another. Starting within a
    learning rate's warm-up hurts; hence 1000.
    """
    if rank < 1:
        raise ValueError(f"expected a rank of at least 1, got {rank}")
    if start_iter < FIRST_START:
        raise ValueError(
            f"expected a start_iter of at least {FIRST_START}, since DDP builds its buckets"
            f" anew after the first step, got {start_iter}"
        )
    state = PowerSGDState(
        _ours(group), matrix_approximation_rank=rank, start_powerSGD_iter=start_iter
    )
    return state, powerSGD_hook


def _ours(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    if group is not None or isinstance(dist.group.WORLD, ProcessGroup):
        return group
    made: dist.ProcessGroup | None = dist.new_group(backend="grpc")
    return made
