"""DDP on made-up data, a rank a pod, with gradients averaged by the node's daemon."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

STEPS = 200


def main() -> None:
    """Prints what must be equal on all ranks: the parameters, added up."""
    # Where ranks meet; the gradients pass through the daemons.
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    )
    with gradwire.connect() as session:
        model.register_comm_hook(session, gradwire.allreduce_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        draw = torch.Generator().manual_seed(1 + dist.get_rank())
        for _ in range(STEPS):
            given = torch.randn(32, 64, generator=draw)
            loss = nn.functional.mse_loss(model(given).squeeze(1), given.sum(1) / 8)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    total = sum(each.double().sum().item() for each in model.parameters())
    print(  # noqa: T201 - its result
        f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f},"
        f" parameters add up to {total!r}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
