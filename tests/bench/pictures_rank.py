"""A rank that trains until it is stopped; the second one of the first node is slow."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

SLOW_RANK = 1
SLOW_SECONDS = 0.2
WIDTH = 768


def main() -> None:
    """Print the number of each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    model = DistributedDataParallel(network, bucket_cap_mb=4)
    session = gradwire.connect(model=model)
    model.register_comm_hook(session, gradwire.allreduce_hook)
    slow = int(os.environ["RANK"]) == SLOW_RANK
    step = 0
    while True:
        if slow:
            time.sleep(SLOW_SECONDS)
        model.zero_grad()
        model(torch.ones(8, WIDTH)).square().mean().backward()
        step += 1
        print(step, flush=True)


if __name__ == "__main__":
    main()
