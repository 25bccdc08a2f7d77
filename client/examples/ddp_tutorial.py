"""The script of PyTorch's DDP tutorials, with "grpc" where they say "gloo". Needs no daemon.

What else differs from what is usually printed: MASTER_ADDR and MASTER_PORT are set, without
which no backend starts, and DDP gets no device_ids, which a model on the CPU can't have.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

WORLD_SIZE = 4


def example(rank: int, world_size: int) -> None:
    """One rank: a step of a linear model."""
    dist.init_process_group("grpc", rank=rank, world_size=world_size)
    model = DistributedDataParallel(nn.Linear(10, 10))
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.001)

    outputs = model(torch.randn(20, 10))
    labels = torch.randn(20, 10)
    loss_fn(outputs, labels).backward()
    optimizer.step()

    print(
        f"rank {rank}: weights add up to {sum(p.sum().item() for p in model.parameters()):.6f}"
    )
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    mp.spawn(example, args=(WORLD_SIZE,), nprocs=WORLD_SIZE, join=True)


if __name__ == "__main__":
    main()
