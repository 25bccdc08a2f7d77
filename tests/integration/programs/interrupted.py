"""Rank 1 of 2, disturbed while it waits: `python -m interrupted SCENE STORE_PORT DAEMON`.

What it prints are the facts that the test asserts; see test_interruptions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import gradwire


def say(text: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def ctrl_c(session: gradwire.Session) -> None:
    """Ctrl-C while the listener, not this thread, hears."""
    future = session.all_reduce(torch.ones(3))
    time.sleep(0.3)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        future.wait()
    except KeyboardInterrupt:
        say(f"interrupted after {time.monotonic() - began:.1f} s")


def chained(session: gradwire.Session) -> None:
    """The script ends while what is chained to a result waits for another one."""
    first = session.all_reduce(torch.ones(3))
    first.then(lambda _: session.all_reduce(torch.ones(3)).wait())
    first.wait()
    say("leaving")


def fork(session: gradwire.Session) -> None:
    """A child waits on its parent's future; then the parent dies and the child lives on."""
    session.all_reduce(torch.ones(3)).wait()
    future = session.all_reduce(torch.ones(3))
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            future.wait()
        except gradwire.LostError as error:
            os.write(writer, str(error).encode())
        time.sleep(30)
        os._exit(0)
    say(os.read(reader, 1000).decode())
    say(f"parent: {future.wait().tolist()}")
    os.kill(os.getpid(), signal.SIGKILL)


def children(session: gradwire.Session) -> None:
    """Loader workers are forked in each epoch, and a program is run in each step."""
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
    number = 0
    for _ in range(5):
        for _ in loader:
            subprocess.run(["/bin/true"], check=True)
            tensor = torch.full((3,), float(number))
            assert session.all_reduce(tensor).wait().tolist() == [float(number)] * 3
            number += 1
    say("all right")


if __name__ == "__main__":
    scene, port, daemon = sys.argv[1:]
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    joined = gradwire.connect(store=store, rank=1, world_size=2, daemon=daemon, timeout=20)
    scenes = {"ctrl_c": ctrl_c, "chained": chained, "fork": fork, "children": children}
    scenes[scene](joined)
