"""A job to try a deployment with: DDP on made-up data, and in the end what all ranks hold.

torchrun --nnodes 2 --node-rank 0 --master-addr HOST --nproc-per-node 2 train.py
"""

from __future__ import annotations

import hashlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

STEPS = int(os.environ.get("STEPS", "30"))
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "0"))


def main() -> None:
    """Prints one line: rank, digest of the parameters, loss before and after."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    with gradwire.connect() as session:
        model.register_comm_hook(session, gradwire.allreduce_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        draw = torch.Generator().manual_seed(1 + rank)
        losses = []
        for _ in range(STEPS):
            given = torch.randn(32, 64, generator=draw)
            loss = nn.functional.mse_loss(model(given).squeeze(1), given.sum(1) / 8)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            time.sleep(PAUSE_SECONDS)
        path = session.path
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(  # noqa: T201 - its result
        f"rank={rank} world_size={world_size} path={path} digest={digest.hexdigest()[:16]}"
        f" loss={losses[0]:.4f},{losses[-1]:.4f}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
