"""One rank of an elastic job: `elastic.py ROUNDS VICTIM [BACKEND]`, started by torchrun.

With a BACKEND it makes torch's process group first. It prints a line of JSON for each thing
that happens.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import gradwire


def say(event: str, **facts: object) -> None:
    """Tell the test what happened. One write: ranks share the pipe."""
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


def main(rounds: int, victim: int, group: str) -> None:
    """Average, round by round; the victim dies half-way in its first life."""
    torch.set_num_threads(1)
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if group:
        dist.init_process_group(group)
    with gradwire.connect(timeout=30.0) as session:
        rank, world = session.rank, session.world_size
        say("connected", life=life, rank=rank, world=world, generation=session.generation)
        try:
            for number in range(rounds):
                if life == 0 and rank == victim and number == rounds // 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                tensor = torch.full((3,), rank + 1.0)
                mean = session.all_reduce(tensor).wait()[0].item()
                if number == 0:
                    say("mean", life=life, world=world, mean=mean)
                time.sleep(0.05)
        except gradwire.GradwireError as error:
            say("error", life=life, rank=rank, text=str(error))
            sys.exit(1)
        say("done", life=life, rank=rank, world=world)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:] or [""])
