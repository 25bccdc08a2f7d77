"""One rank of trainings: of each wire, seed by seed. Run by job.running.

Its arguments are an Order's fields as JSON. Rank 0 writes the fields of a Run a line.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from curves.catalogue import WIRES, Run, Wire
from curves.subjects import material
from gradwire_ops import query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from curves.subjects import Material

ONE_BUCKET_MB = 1000.0
POWER_RANK = 2
POWER_FROM_STEP = 30
"""Not before the learning rate is up."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to train."""

    subject: str
    wires: list[str]
    seeds: list[int]
    steps: int


def main() -> None:
    """Train as the argument says, and report."""
    order = Order(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    data = material(order.subject)
    for wire in (each for each in WIRES if each.name in order.wires):
        for seed in order.seeds:
            run = _train(order, wire, data, seed)
            if dist.get_rank() == 0:
                print(json.dumps(asdict(run)), flush=True)
    dist.destroy_process_group()


def _train(order: Order, wire: Wire, data: Material, seed: int) -> Run:
    torch.manual_seed(seed)
    network = data.network()
    with _averaged(wire, network, data.bucket_mb) as model:
        batches = data.batches(seed, dist.get_rank(), dist.get_world_size())
        optimizer, schedule = data.optimizer(network, order.steps)
        losses = []
        dist.barrier()
        sent = _bytes_sent()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(order.steps):
            optimizer.zero_grad()
            loss = data.loss(model, next(batches))
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        seconds = time.perf_counter() - began
        dist.barrier()
        sent = _bytes_sent() - sent
        dist.barrier()
    score = data.score(network)
    counted = wire.way != "gloo"
    return Run(
        subject=order.subject,
        wire=wire.name,
        seed=seed,
        losses=_mean(torch.stack(losses)).tolist(),
        accuracy=score.accuracy,
        loss=score.loss,
        bytes_per_step=_mean(torch.tensor(sent / order.steps)).item()
        if counted
        else _gloo_bytes(network),
        counted=counted,
        same_bits=_same_bits(network),
        seconds=seconds,
    )


@contextmanager
def _averaged(
    wire: Wire, network: nn.Module, bucket_mb: float
) -> Iterator[DistributedDataParallel]:
    """The network under DDP, which averages its gradients over this wire."""
    if wire.way == "powersgd":
        with _over_power_sgd(network) as model:
            yield model
        return
    model = DistributedDataParallel(
        network, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
    )
    if wire.way == "gloo":
        yield model
        return
    with gradwire.connect(wire=wire.words, model=model) as session:
        model.register_comm_hook(session, gradwire.allreduce_hook)
        yield model
        dist.barrier()


@contextmanager
def _over_power_sgd(network: nn.Module) -> Iterator[DistributedDataParallel]:
    group = dist.new_group(backend="grpc")
    assert group is not None, "all ranks are in it"
    # With several buckets the ranks would come to its reductions in different orders.
    model = DistributedDataParallel(network, process_group=group, bucket_cap_mb=ONE_BUCKET_MB)
    hook = gradwire.low_rank(POWER_RANK, start_iter=POWER_FROM_STEP, group=group)
    model.register_comm_hook(*hook)
    yield model
    dist.barrier()
    dist.destroy_process_group(group)


def _bytes_sent() -> int:
    """By this node's daemon to the others; 0 where there is none."""
    address = os.environ.get("GRADWIRE_DAEMON")
    if address is None:
        return 0
    links = (link for job in query.status(address).jobs for link in job.links)
    return sum(link.bytes_sent for link in links)


def _gloo_bytes(network: nn.Module) -> float:
    """What a ring of all ranks sends from node to node: each rank 2(n-1)/n, one on each node
    to another node.
    """
    ranks = dist.get_world_size()
    size = sum(each.numel() * each.element_size() for each in network.parameters())
    return 2 * (ranks - 1) / ranks * size


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


def _same_bits(network: nn.Module) -> bool:
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    digests: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest.hexdigest())
    return len(set(digests)) == 1


if __name__ == "__main__":
    main()
