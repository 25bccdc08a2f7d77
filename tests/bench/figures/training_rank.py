"""One rank of a paced training job: DDP over Gradwire and gloo by turns. Run by job.running.

Its arguments are an Order's fields as JSON. Rank 0 writes the fields of a Step as JSON.
"""

# No `from __future__ import annotations` here: torch reads the hook's annotations as objects.

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from operator import lt

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from figures.pace import Pace, paced_model

BUCKET_MB = 5
WARM_UP_STEPS = 2
"""DDP orders its buckets anew after the first."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to train, and how long a layer takes backward; forward it is half of that."""

    layers: int
    shape: tuple[int, int]
    layer_seconds: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Step:
    """Medians of one training step's time, on the slowest rank."""

    parameters: int
    size_bytes: int
    compute_seconds: float
    """Without communication."""
    communication_seconds: float
    """What it adds to a step whose layers take no time."""
    seconds: float
    gloo_communication_seconds: float
    gloo_seconds: float
    buckets: int
    first_bucket_seconds: float
    """From the start of the backward pass until the first bucket was handed over."""
    last_layer_seconds: float
    """From the same until the last layer's backward pass began."""
    overlapped: bool
    """In every step the first bucket went before the last layer's backward pass began."""


@dataclass(slots=True)
class _Times:
    """Of each round."""

    compute: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    full: list[float] = field(default_factory=list)
    gloo_bare: list[float] = field(default_factory=list)
    gloo_full: list[float] = field(default_factory=list)
    first_bucket: list[float] = field(default_factory=list)
    last_layer: list[float] = field(default_factory=list)
    buckets: int = 0

    def note(self, trainer: "_Trainer") -> None:
        """When buckets went, and layers began, in the step that was just made."""
        began = trainer.pace.began
        self.first_bucket.append(trainer.sent[0] - began[0])
        self.last_layer.append(began[-1] - began[0])
        self.buckets = len(trainer.sent)


class _Trainer:
    """A model under DDP, and its optimizer."""

    def __init__(self, order: Order, session: gradwire.Session | None) -> None:
        self.pace = Pace()
        self.sent: list[float] = []
        network = paced_model(self.pace, order.layers, order.shape)
        self._optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        self._model = DistributedDataParallel(
            network, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        self._samples = torch.ones(1)
        self.parameters = sum(each.numel() for each in network.parameters())
        if session is not None:
            self._model.register_comm_hook(session, self._noting_hook())

    def _noting_hook(
        self,
    ) -> Callable[[gradwire.Session, dist.GradBucket], torch.futures.Future[torch.Tensor]]:
        def hook(
            session: gradwire.Session, bucket: dist.GradBucket
        ) -> torch.futures.Future[torch.Tensor]:
            self.sent.append(time.perf_counter())
            return gradwire.allreduce_hook(session, bucket)

        return hook

    def step(self, layer_seconds: float, *, alone: bool = False) -> float:
        """Seconds of one step on the slowest rank; alone: gradients stay on this rank."""
        self.pace.forward_seconds = layer_seconds / 2
        self.pace.backward_seconds = layer_seconds
        self.pace.began.clear()
        self.sent.clear()
        dist.barrier()
        began = time.perf_counter()
        with self._model.no_sync() if alone else nullcontext():
            self._optimizer.zero_grad()
            self._model(self._samples).sum().backward()
            self._optimizer.step()
        seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return seconds.item()


def main() -> None:
    """Train as the argument says, and report."""
    order = Order(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with gradwire.connect() as session:
        measured = _measure(order, _Trainer(order, session), _Trainer(order, None))
        dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(asdict(measured)), flush=True)
    dist.destroy_process_group()


def _measure(order: Order, ours: _Trainer, gloo: _Trainer) -> Step:
    for trainer in (ours, gloo):
        for _ in range(WARM_UP_STEPS):
            trainer.step(0)
    times = _Times()
    for number in range(order.rounds):
        times.compute.append(ours.step(order.layer_seconds, alone=True))
        times.rest.append(ours.step(0, alone=True))
        # Who goes first goes second the next time.
        for trainer in (ours, gloo) if number % 2 else (gloo, ours):
            mine = trainer is ours
            (times.bare if mine else times.gloo_bare).append(trainer.step(0))
            (times.full if mine else times.gloo_full).append(trainer.step(order.layer_seconds))
            if mine:
                times.note(trainer)
    median = statistics.median
    return Step(
        parameters=ours.parameters,
        size_bytes=4 * ours.parameters,
        compute_seconds=median(times.compute),
        communication_seconds=median(times.bare) - median(times.rest),
        seconds=median(times.full),
        gloo_communication_seconds=median(times.gloo_bare) - median(times.rest),
        gloo_seconds=median(times.gloo_full),
        buckets=times.buckets,
        first_bucket_seconds=median(times.first_bucket),
        last_layer_seconds=median(times.last_layer),
        overlapped=all(map(lt, times.first_bucket, times.last_layer)),
    )


if __name__ == "__main__":
    main()
