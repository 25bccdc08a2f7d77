"""The DDP communication hook."""

# No `from __future__ import annotations` here: torch reads this hook's annotations as objects.

import torch
import torch.distributed as dist

from gradwire._profiling import span
from gradwire._session import Session


def allreduce_hook(
    session: Session, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks: `model.register_comm_hook(session, allreduce_hook)`.

    Returns at once. The future holds the bucket's own buffer, averaged in place, in its dtype:
    by `session.weight` as it is now, on each rank.
    """
    with span("bucket {}", bucket.index()):
        return session.reduce(bucket)
