"""One rank of a loop that makes some gradients urgent, or none. Run by job.running.

Its arguments are an Order's fields as JSON. Rank 0 writes a row for each kind of loop.
"""

# No `from __future__ import annotations` here: torch reads the hook's annotations as objects.

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from figures.pace import Pace, paced_model
from figures.training_rank import BUCKET_MB, Order

WARM_UP_STEPS = 2


class _Layers:
    """Gradients by hand: each is handed over when it is there, and waited for when its layer's
    next forward pass needs it."""

    loop = "waits for each layer"

    def __init__(self, order: Order, session: gradwire.Session) -> None:
        self._order = order
        self._session = session
        self._weights = [torch.zeros(*order.shape) for _ in range(order.layers)]
        self._gradients = [torch.zeros(*order.shape) for _ in range(order.layers)]
        self._results: list[torch.futures.Future[torch.Tensor] | None] = [None] * order.layers

    def step(self, *, urgent: bool) -> None:
        """Forward, each layer as soon as its weights are there; then backward."""
        layers, seconds = self._order.layers, self._order.layer_seconds
        for layer in range(layers):
            if (result := self._results[layer]) is not None:
                result.wait()
                self._weights[layer].sub_(self._gradients[layer], alpha=0.01)
            time.sleep(seconds / 2)
        for layer in reversed(range(layers)):
            time.sleep(seconds)
            self._gradients[layer].fill_(1e-6)
            self._results[layer] = self._session.all_reduce(
                self._gradients[layer], urgent=urgent and layer < layers // 2
            )

    def finish(self) -> None:
        """Wait for what the last step has left."""
        for result in self._results:
            if result is not None:
                result.wait()


class _Ddp:
    """The same model under DDP."""

    loop = "DDP, waits for all"

    def __init__(self, order: Order, session: gradwire.Session) -> None:
        self._pace = Pace(order.layer_seconds / 2, order.layer_seconds)
        self._half = order.layers // 2
        self._urgent = False
        network = paced_model(self._pace, order.layers, order.shape)
        self._optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        self._model = DistributedDataParallel(
            network, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        self._samples = torch.ones(1)
        self._model.register_comm_hook(session, self._hook)

    def _hook(
        self, session: gradwire.Session, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        # The later a bucket comes, the sooner the next forward pass needs it.
        urgent = self._urgent and bucket.index() >= self._half
        return session.all_reduce(bucket.buffer(), urgent=urgent)

    def step(self, *, urgent: bool) -> None:
        """One step of training."""
        self._urgent = urgent
        self._pace.began.clear()
        self._optimizer.zero_grad()
        self._model(self._samples).sum().backward()
        self._optimizer.step()

    def finish(self) -> None:
        """Nothing is left."""


def main() -> None:
    """Train both ways, each with and without, by turns."""
    order = Order(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with gradwire.connect() as session:
        for loop in (_Layers(order, session), _Ddp(order, session)):
            row = _measure(order, loop)
            if dist.get_rank() == 0:
                print(json.dumps(row), flush=True)
        dist.barrier()
    dist.destroy_process_group()


def _measure(order: Order, loop: _Layers | _Ddp) -> dict[str, object]:
    for urgent in (False, True):
        _time(loop, WARM_UP_STEPS, urgent=urgent)
    alike: list[float] = []
    urgently: list[float] = []
    for number in range(order.rounds):
        # Who goes first goes second the next time.
        for urgent in (False, True) if number % 2 else (True, False):
            (urgently if urgent else alike).append(_time(loop, 3, urgent=urgent))
    return {
        "loop": loop.loop,
        "layers": order.layers,
        "layer_seconds": order.layer_seconds,
        "size_bytes": 4 * order.layers * order.shape[0] * order.shape[1],
        "seconds": statistics.median(alike),
        "urgent_seconds": statistics.median(urgently),
    }


def _time(loop: _Layers | _Ddp, steps: int, *, urgent: bool) -> float:
    """Seconds of a step on the slowest rank, of several without a stop between them."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        loop.step(urgent=urgent)
    loop.finish()
    seconds = torch.tensor((time.perf_counter() - began) / steps, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


if __name__ == "__main__":
    main()
