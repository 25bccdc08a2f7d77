"""One rank of a drill: steps like a training job's, of which every bit is known beforehand.

Run in a process that is forked from one that has imported all of this. Each step's gradients
hang on the parameters, so that a wrong bit goes on into all later steps.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import time
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import gradwire
from gradwire._connect import connect
from gradwire_server import logs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from torch import Tensor

    from gradwire_ops.drill_task import Task

LEARNING_RATE = 0.1
DECAY = 0.01
MEETING_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1


def serve(task: Task, words: Connection) -> None:
    """Train, and say so: ("step", time, digest), ("done", digest), ("error", time, ...)."""
    _settle(task)
    try:
        _train(task, words)
    except gradwire.GradwireError as error:
        words.send(("error", time.monotonic(), type(error).__name__, str(error)))


def _settle(task: Task) -> None:
    """On its own: Ctrl-C is for the drill, which ends us, and so does the end of the drill."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setpgid(0, 0)
    file = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
        del os.environ[name]
    os.environ.update(task.settings)
    logs.set_up("info", "text")
    torch.set_num_threads(1)


def _train(task: Task, words: Connection) -> None:
    parameters, own = make_tensors(task.seed, task.rank, task.elements)
    store = dist.FileStore(task.store, task.world_size)
    store.set_timeout(timedelta(seconds=MEETING_SECONDS))
    with connect(
        store=store, rank=task.rank, world_size=task.world_size, daemon=task.daemon
    ) as session:
        digest = 0
        for step in range(task.steps):
            digest = do_step(session, parameters, own, step, digest)
            words.send(("step", time.monotonic(), digest))
        words.send(("done", final_digest(parameters)))


def make_tensors(
    seed: int, rank: int, elements: Sequence[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters, the same on all ranks, and what each rank's gradients begin with."""
    common = torch.Generator().manual_seed(seed)
    mine = torch.Generator().manual_seed((seed << 16) + rank + 1)
    parameters = [torch.randn(count, generator=common) for count in elements]
    return parameters, [torch.randn(count, generator=mine) for count in elements]


def do_step(
    session: gradwire.Session,
    parameters: Sequence[Tensor],
    own: Sequence[Tensor],
    step: int,
    digest: int,
) -> int:
    """Hand all buckets in, wait for all, and use them; a digest of all results so far."""
    scale = 1.0 / (1 + step % 7)
    gradients = [
        base.mul(scale).add_(parameter, alpha=DECAY)
        for base, parameter in zip(own, parameters, strict=True)
    ]
    results = [session.all_reduce(gradient, "mean") for gradient in gradients]
    for parameter, gradient, result in zip(parameters, gradients, results, strict=True):
        result.wait()
        digest = zlib.crc32(gradient.numpy().data, digest)
        parameter.sub_(gradient, alpha=LEARNING_RATE)
    return digest


def final_digest(parameters: Sequence[Tensor]) -> str:
    """SHA-256 of all their bits."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.numpy().data)
    return digest.hexdigest()
