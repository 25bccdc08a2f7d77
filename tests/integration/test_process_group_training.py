# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.
"""What stands on torch.distributed, over the backend "grpc" and against one process alone."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

InGroups: TypeAlias = Callable[..., list[Any]]

STEPS = 4
RATE = 0.05


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 2))


def batches(world_size: int) -> Iterator[torch.Tensor]:
    """The same on every rank: a rank takes its part."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        yield torch.randn(world_size, 4, 8, generator=generator)


def numbers(module: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in module.parameters()])


def alone(world_size: int) -> torch.Tensor:
    """Parameters after the same training in one process."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for batch in batches(world_size):
        optimizer.zero_grad()
        module(batch.flatten(0, 1)).square().mean().backward()
        optimizer.step()
    return numbers(module)


def train(
    module: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> None:
    for batch in batches(group.size()):
        optimizer.zero_grad()
        module(batch[group.rank()]).square().mean().backward()
        optimizer.step()


def sgd(module: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=RATE)


def ddp(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    replica = DistributedDataParallel(model(), bucket_cap_mb=0.001, **options)
    train(replica, sgd(replica), group)
    torch.testing.assert_close(numbers(replica), alone(group.size()))


@pytest.mark.case("E01")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
    ],
    ids=["plain", "static", "unused", "view"],
)
def test_ddp_trains_as_one_process_would(in_groups: InGroups, options: dict[str, Any]) -> None:
    in_groups([2, 1], ddp, options)


def accumulated(group: dist.ProcessGroup) -> None:
    replica, single = DistributedDataParallel(model()), model()
    every = list(batches(group.size()))
    for step, batch in enumerate(every):
        last = step == len(every) - 1
        with nullcontext() if last else replica.no_sync():
            replica(batch[group.rank()]).square().mean().backward()
        single(batch.flatten(0, 1)).square().mean().backward()
    for ours, theirs in zip(replica.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_no_sync_adds_up_what_is_averaged_later(in_groups: InGroups) -> None:
    in_groups([2, 1], accumulated)


def joined(group: dist.ProcessGroup) -> int:
    replica = DistributedDataParallel(model())
    optimizer, steps = sgd(replica), 0
    with Join([replica]):
        for _ in range(2 + group.rank()):
            optimizer.zero_grad()
            replica(torch.ones(2, 8)).square().mean().backward()
            optimizer.step()
            steps += 1
    everyone = [torch.empty_like(numbers(replica)) for _ in range(group.size())]
    dist.all_gather(everyone, numbers(replica))
    assert all(torch.equal(everyone[0], each) for each in everyone)
    return steps


def test_ranks_with_fewer_batches_join(in_groups: InGroups) -> None:
    assert in_groups([2, 1], joined) == [2, 3, 4]


def in_bf16(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """torch's hook under another name: by its own, DDP refuses it where there is no GPU."""
    return default_hooks.bf16_compress_hook(group, bucket)


HOOKS = {
    "none": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": in_bf16,
}


def hooked(group: dist.ProcessGroup, name: str) -> None:
    # PowerSGD's callbacks reduce, too; of several buckets, in an order that ranks don't share.
    megabytes = 25 if name == "powersgd" else 0.001
    replica = DistributedDataParallel(model(), bucket_cap_mb=megabytes)
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.1
        )
        replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        replica.register_comm_hook(group, HOOKS[name])
    train(replica, sgd(replica), group)
    everyone = [torch.empty_like(numbers(replica)) for _ in range(group.size())]
    dist.all_gather(everyone, numbers(replica))
    assert all(torch.equal(everyone[0], each) for each in everyone)
    tolerance = 0.2 if name == "powersgd" else 0.01
    assert (numbers(replica) - alone(group.size())).abs().max() < tolerance


@pytest.mark.case("E01")
@pytest.mark.parametrize("name", [*HOOKS, "powersgd"])
def test_the_hooks_of_torch_work(in_groups: InGroups, name: str) -> None:
    in_groups([2, 1], hooked, name)


def sharded(group: dist.ProcessGroup) -> None:
    module = model()
    mesh = init_device_mesh("cpu", (group.size(),))
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    train(module, sgd(module), group)
    whole = torch.cat([each.full_tensor().flatten() for each in module.parameters()])  # type: ignore[attr-defined]
    torch.testing.assert_close(whole.detach(), alone(group.size()))


def test_fsdp2_trains_as_one_process_would(in_groups: InGroups) -> None:
    in_groups([2, 1], sharded)


def frugal(group: dist.ProcessGroup) -> None:
    # torch warns of itself here, which is an error in the tests' own process.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    replica = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(replica.parameters(), torch.optim.SGD, lr=RATE)
    train(replica, optimizer, group)
    torch.testing.assert_close(numbers(replica), alone(group.size()))


def test_zero_redundancy_optimizer_steps_as_a_whole_one_would(in_groups: InGroups) -> None:
    in_groups([2, 1], frugal)


def test_post_local_sgd_averages_now_and_then(in_groups: InGroups) -> None:
    in_groups([2], seldom)


def seldom(group: dist.ProcessGroup) -> None:
    from torch.distributed.optim import PostLocalSGDOptimizer

    replica = DistributedDataParallel(model())
    alone_groups = [dist.new_group([rank]) for rank in range(group.size())]
    state = post_localSGD_hook.PostLocalSGDState(
        None, alone_groups[group.rank()], start_localSGD_iter=1
    )
    replica.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(sgd(replica), averager)
    drifted = []
    for batch in batches(group.size()):
        optimizer.zero_grad()
        replica(batch[group.rank()]).square().mean().backward()
        optimizer.step()
        everyone = [torch.empty_like(numbers(replica)) for _ in range(group.size())]
        dist.all_gather(everyone, numbers(replica))
        drifted.append(not torch.equal(*everyone))
    assert drifted == [False, True, False, True]


def saved(group: dist.ProcessGroup, folder: str) -> None:
    module = model()
    mesh = init_device_mesh("cpu", (group.size(),))
    fully_shard(module, mesh=mesh)
    expected = [each.full_tensor().clone() for each in module.parameters()]  # type: ignore[attr-defined]
    checkpoint.save(module.state_dict(), checkpoint_id=folder)
    with torch.no_grad():
        for each in module.parameters():
            each.zero_()
    state = module.state_dict()
    checkpoint.load(state, checkpoint_id=folder)
    module.load_state_dict(state)
    for each, before in zip(module.parameters(), expected, strict=True):
        assert torch.equal(each.full_tensor(), before)  # type: ignore[attr-defined]


def test_a_distributed_checkpoint_is_saved_and_loaded(in_groups: InGroups) -> None:
    with tempfile.TemporaryDirectory() as folder:
        in_groups([2, 1], saved, folder)


def meshed(group: dist.ProcessGroup) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    tensor = torch.tensor([float(group.rank())])
    rows, columns = tensor.clone(), tensor.clone()
    dist.all_reduce(rows, group=mesh.get_group("rows"))
    dist.all_reduce(columns, group=mesh.get_group("columns"))
    assert rows.item() == {0: 2.0, 1: 4.0}[group.rank() % 2]
    assert columns.item() == {0: 1.0, 1: 5.0}[group.rank() // 2]
    functional = functional_all_reduce(tensor, "sum", group=(mesh, 0))
    assert (functional + 0).item() == rows.item()


def test_a_device_mesh_has_orthogonal_groups(in_groups: InGroups) -> None:
    in_groups([2, 2], meshed)


def sampled(group: dist.ProcessGroup) -> list[int]:
    data = TensorDataset(torch.arange(10))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    return [int(each) for (batch,) in loader for each in batch]


def test_a_distributed_sampler_knows_rank_and_size(in_groups: InGroups) -> None:
    assert in_groups([2], sampled) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def synchronised(group: dist.ProcessGroup) -> str:
    module = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is the result
        DistributedDataParallel(module)(torch.randn(3, 4))
    return f"{group.rank()}: {caught.value}"


def test_sync_batch_norm_is_refused_on_the_cpu_by_torch(in_groups: InGroups) -> None:
    for text in in_groups([2], synchronised):
        assert "SyncBatchNorm" in text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_tensors_of_a_gpu_are_reduced_through_the_host(in_groups: InGroups) -> None:
    in_groups([2], on_a_gpu)


def on_a_gpu(group: dist.ProcessGroup) -> None:
    tensor = torch.full((1000,), 1.0 + group.rank(), device="cuda")
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    work.wait()
    assert tensor.sum().item() == 3000
    assert doubled.wait().sum().item() == 6000
