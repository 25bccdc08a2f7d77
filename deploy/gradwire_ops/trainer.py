"""The demo's training job: handwritten digits under DDP. Run as every rank, by job.running.

Writes one JSON object a line: after every epoch, and at the end a report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gradwire
from gradwire_ops import query

if TYPE_CHECKING:
    from collections.abc import Mapping

Examples: TypeAlias = tuple[Tensor, Tensor]

SEED = 1797
TEST_SHARE = 5
"""One example in this many is kept for the test."""
BATCH = 16
LEARNING_RATE = 0.05
MOMENTUM = 0.9
BUCKET_MB = 0.1
"""Small, so that even this small network has several buckets."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well the network does on the test's examples."""

    loss: float
    accuracy: float


def main() -> None:
    """Train on this rank's share of the data and report."""
    parser = argparse.ArgumentParser(prog="gradwire_ops.trainer", description=__doc__)
    parser.add_argument("--over", choices=("gradwire", "gloo"), default="gradwire")
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    over_gradwire = arguments.over == "gradwire"
    with gradwire.connect() if over_gradwire else nullcontext() as session:
        _run(arguments.epochs, session)
        # Nobody closes before everybody has counted the bytes.
        dist.barrier()
    dist.destroy_process_group()


def _run(epochs: int, session: gradwire.Session | None) -> None:
    training, test = load_examples()
    torch.manual_seed(SEED)
    model = DistributedDataParallel(
        make_network(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    )
    if session is not None:
        model.register_comm_hook(session, gradwire.allreduce_hook)
    seconds = _train(model, training, test, epochs)
    score = _score(model.module, test)
    _say(
        event="report",
        node=int(os.environ["GROUP_RANK"]),
        accuracy=score.accuracy,
        loss=score.loss,
        digest=_digest(model.module),
        seconds=seconds,
        communication=None if session is None else _communication(session),
    )


def load_examples(test_share: int = TEST_SHARE) -> tuple[Examples, Examples]:
    """The 1797 examples, all but one in `test_share` for training, the others for the test.

    The same split on every rank.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    size = len(labels) // test_share
    test, training = order[:size], order[size:]
    return (images[training], labels[training]), (images[test], labels[test])


def make_network() -> nn.Module:
    """Two convolutions and two linear layers, 72 thousand parameters, for these examples."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _train(
    model: DistributedDataParallel, training: Examples, test: Examples, epochs: int
) -> float:
    """Seconds spent in training steps; the test after each epoch isn't counted."""
    dataset = TensorDataset(*training)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, seed=SEED)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    seconds = 0.0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        seconds += time.perf_counter() - began
        score = _score(model.module, test)
        _say(event="epoch", epoch=epoch + 1, loss=score.loss, accuracy=score.accuracy)
    return seconds


@torch.no_grad()
def _score(network: nn.Module, test: Examples) -> Score:
    images, labels = test
    guesses = network(images)
    right = (guesses.argmax(dim=1) == labels).float().mean()
    return Score(cross_entropy(guesses, labels).item(), right.item())


def _digest(network: nn.Module) -> str:
    """SHA-256 over the bits of all parameters, in order."""
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _communication(session: gradwire.Session) -> Mapping[str, object]:
    """What this rank's session has done, and what its daemon has sent to the other nodes."""
    stats = session.stats
    # Counted once all ranks are through: the daemon serves them all.
    dist.barrier()
    jobs = [
        job for job in query.status(session.daemon).jobs if job.generation == session.generation
    ]
    return {
        "rounds": stats.rounds,
        "bytes_in": stats.bytes_in,
        "seconds_waiting": stats.seconds_waiting,
        "nodes": session.nodes,
        "path": session.path,
        "wire_bytes_sent": sum(link.bytes_sent for job in jobs for link in job.links),
        "wire_bytes_received": sum(link.bytes_received for job in jobs for link in job.links),
    }


def _say(**words: object) -> None:
    # The report on standard output is this program's interface.
    print(json.dumps({"rank": dist.get_rank(), **words}), flush=True)  # noqa: T201 - see above


if __name__ == "__main__":
    main()
