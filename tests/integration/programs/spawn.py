"""`mp.spawn` with two ranks, as torch's tutorials write it.

python -m spawn PORT
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import torch.multiprocessing as mp


def work(rank: int, world_size: int, port: str) -> None:
    """One rank."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    )
    assert import_module("rank").main("2") == 0


if __name__ == "__main__":
    mp.spawn(work, (2, sys.argv[1]), nprocs=2)
