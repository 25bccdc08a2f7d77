"""One rank as a process of its own, for tests that start, watch and kill it.

    python -m rank ROUNDS [ELEMENTS]

Who it is stands in the environment, as for any training script. In each round it brings its
rank plus one; ROUNDS may be `forever`. With `hold` it connects, and brings nothing; with `exit`
it then ends, with ELEMENTS as its exit code. It prints a line of JSON for each thing that
happens.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import struct
import sys
import time

import psutil
import torch

import gradwire


def say(event: str, **facts: object) -> None:
    """Tell the test what happened, and when."""
    line = json.dumps({"event": event, "at": time.monotonic(), **facts})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def pid_behind(address: str) -> int:
    """The process that listens on a Unix socket; 0 for other addresses."""
    if not address.startswith("unix:"):
        return 0
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address.removeprefix("unix:"))
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", credentials)[0])


def main(rounds: str, elements: str = "1") -> int:
    """Exit code: 1 where gradwire raised."""
    torch.set_num_threads(1)
    try:
        with gradwire.connect() as session:
            say(
                "connected",
                rank=session.rank,
                pid=os.getpid(),
                node=session.node,
                nodes=session.nodes,
                daemon=session.daemon,
                daemon_pid=pid_behind(session.daemon),
                path=session.path,
            )
            if rounds == "hold":
                signal.pause()
            if rounds == "exit":
                # Not at once: the others may be about to take their seats.
                time.sleep(1.0)
                os._exit(int(elements))
            for _ in itertools.count() if rounds == "forever" else range(int(rounds)):
                tensor = torch.full((int(elements),), session.rank + 1.0)
                session.all_reduce(tensor).wait()
                say("round", least=tensor.min().item(), most=tensor.max().item())
    except gradwire.GradwireError as error:
        children = [child.pid for child in psutil.Process().children()]
        say("error", kind=type(error).__name__, text=str(error), children=children)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
