"""The DDP communication hook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import torch.distributed as dist

    from gradwire._session import Session


def allreduce_hook(
    session: Session, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks: `model.register_comm_hook(session, allreduce_hook)`.

    Returns at once; the future holds the bucket's own buffer, averaged in place, in its own dtype.
    """
    return session.submit(bucket.buffer(), [tuple(each.shape) for each in bucket.gradients()])
