"""Known ways for a process group to go wrong, by their numbers."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

import gradwire

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_ops.cluster import Cluster

InGroups: TypeAlias = "Callable[..., list[Any]]"

EXAMPLE = Path(__file__).parents[2] / "client" / "examples" / "ddp_tutorial.py"

DTYPES = {
    "sum": "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool complex64",
    "mean": "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 complex64",
    "max": "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool",
}
"""What each operation has a meaning for, and we a sum."""

OPS = {"sum": ReduceOp.SUM, "mean": ReduceOp.AVG, "max": ReduceOp.MAX}
EVERY = [*DTYPES["sum"].split(), "float8_e4m3fn"]


def averaged(group: dist.ProcessGroup) -> tuple[list[float], list[int]]:
    real = torch.full((5,), 1.0 + group.rank())
    whole = torch.full((5,), [1, 2, 4][group.rank()])
    dist.all_reduce(real, ReduceOp.AVG)
    dist.all_reduce(whole, ReduceOp.AVG)
    return real.tolist(), whole.tolist()


@pytest.mark.case("M04")
def test_avg_divides_by_the_number_of_ranks(in_groups: InGroups) -> None:
    assert in_groups([2, 1], averaged) == [([2.0] * 5, [2] * 5)] * 3


def embedded(group: dist.ProcessGroup) -> list[list[float]]:
    table = nn.Embedding(5, 2, sparse=True)
    nn.init.constant_(table.weight, 0.0)
    replica = DistributedDataParallel(table)
    replica(torch.tensor([group.rank(), 2])).sum().backward()
    assert table.weight.grad is not None
    rows: list[list[float]] = table.weight.grad.to_dense().tolist()
    return rows


@pytest.mark.case("M19")
def test_sparse_gradients_of_an_embedding_are_averaged(in_groups: InGroups) -> None:
    expected = [[0.5] * 2, [0.5] * 2, [1.0] * 2, [0.0] * 2, [0.0] * 2]
    assert in_groups([1, 1], embedded) == [expected] * 2


def every_dtype(group: dist.ProcessGroup) -> None:
    for name in EVERY:
        for op, c10d_op in OPS.items():
            dtype = getattr(torch, name)
            tensor = torch.tensor([0, 1]).to(dtype) if group.rank() else torch.ones(2).to(dtype)
            if name in DTYPES[op].split():
                dist.all_reduce(tensor, c10d_op)
                right = {"sum": [1, 2], "mean": [0.5, 1], "max": [1, 1]}[op]
                expected = torch.tensor(right).to(dtype)
                assert torch.equal(tensor, expected), (name, op, tensor)
            else:
                # torch itself refuses the maximum of complex numbers.
                with pytest.raises((TypeError, ValueError)) as caught:
                    dist.all_reduce(tensor, c10d_op)
                assert name in str(caught.value) or "complex" in str(caught.value)
    last = torch.ones(1)
    dist.all_reduce(last)
    assert last.item() == 2


@pytest.mark.case("M22")
def test_every_dtype_is_reduced_or_refused_by_name(in_groups: InGroups) -> None:
    in_groups([1, 1], every_dtype)


def differing(group: dist.ProcessGroup) -> list[str]:
    texts = []
    dtypes, shapes = [torch.float16, torch.bfloat16], [(2, 8), (8, 2)]
    for tensor in (
        torch.ones(64, dtype=dtypes[group.rank()]),
        torch.ones(shapes[group.rank()]),
    ):
        begin = time.monotonic()
        with pytest.raises(gradwire.MismatchError) as caught:
            dist.all_reduce(tensor)
        assert time.monotonic() - begin < 5
        texts.append(str(caught.value))
    with pytest.raises(gradwire.MismatchError):
        dist.all_reduce(torch.ones(3)) if group.rank() else dist.barrier()
    last = torch.ones(1)
    dist.all_reduce(last)
    assert last.item() == 2
    return texts


@pytest.mark.case("M31")
@pytest.mark.parametrize("layout", [[2], [1, 1]], ids=["one-node", "two-nodes"])
def test_ranks_that_pair_different_tensors_fail_at_once(
    in_groups: InGroups, layout: list[int]
) -> None:
    for dtypes, shapes in in_groups(layout, differing):
        assert "float16" in dtypes
        assert "bfloat16" in dtypes
        assert "2x8" in shapes
        assert "8x2" in shapes


def weighed(group: dist.ProcessGroup) -> float:
    layer = nn.Linear(1, 1, bias=False)
    batch = torch.full((1, 1), 4.0) if group.rank() == 0 else torch.full((3, 1), 8.0)
    replica = DistributedDataParallel(layer)
    replica(batch).mean().backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.item()


@pytest.mark.case("M34")
def test_ranks_count_alike_whatever_their_batches(in_groups: InGroups) -> None:
    assert in_groups([1, 1], weighed) == [6.0, 6.0]


def begun(group: dist.ProcessGroup, repeats: int) -> list[str]:
    digests = []
    for repeat in range(repeats):
        torch.manual_seed(100 * repeat + group.rank())
        module = nn.Sequential(nn.BatchNorm1d(3), *(nn.Linear(3, 3) for _ in range(150)))
        with torch.no_grad():
            for buffer in module.buffers():
                buffer.add_(group.rank())
        first = hashlib.sha256()
        DistributedDataParallel(module)
        for tensor in [*module.parameters(), *module.buffers()]:
            first.update(tensor.detach().numpy().tobytes())
        digests.append(first.hexdigest())
    return digests


@pytest.mark.case("M37")
def test_replicas_begin_with_the_parameters_and_buffers_of_rank_0(in_groups: InGroups) -> None:
    first, *others = in_groups([2, 2], begun, 20)
    assert len(set(first)) == len(first)
    assert others == [first] * 3


def large(group: dist.ProcessGroup, elements: int) -> None:
    tensor = torch.zeros(elements, dtype=torch.float16)
    marks = [0, 2**30 - 1, 2**30, elements - 1]
    tensor[marks] = 1.0 + group.rank()
    dist.all_reduce(tensor)
    assert tensor[marks].tolist() == [3.0] * 4
    assert tensor.count_nonzero().item() == 4
    if group.rank() == 0:
        tensor[marks] = 5.0
    dist.broadcast(tensor, 0)
    assert tensor[marks].tolist() == [5.0] * 4


@pytest.mark.case("M33")
@pytest.mark.timeout(240)
def test_tensors_over_two_gibibytes_are_reduced_and_broadcast(in_groups: InGroups) -> None:
    in_groups([2], large, 1_100_000_000, patience=200.0)


def compiled(group: dist.ProcessGroup, *, inside: bool) -> None:
    def trained(wrap: Callable[[nn.Module], nn.Module]) -> torch.Tensor:
        torch.manual_seed(5)
        module = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
        whole = wrap(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(5):
            torch.manual_seed(10 * step + group.rank())
            optimizer.zero_grad()
            whole(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
        return torch.cat([each.detach().flatten() for each in module.parameters()])

    def compiling(module: nn.Module) -> nn.Module:
        return torch.compile(module, backend="aot_eager")  # type: ignore[return-value]

    def wrapped(module: nn.Module) -> nn.Module:
        if inside:
            return DistributedDataParallel(compiling(module))
        return compiling(DistributedDataParallel(module))

    torch.testing.assert_close(trained(wrapped), trained(DistributedDataParallel))


@pytest.mark.case("E06")
@pytest.mark.parametrize("inside", [True, False], ids=["ddp-of-compiled", "compiled-ddp"])
def test_compiled_models_train_as_they_do_uncompiled(
    in_groups: InGroups, *, inside: bool
) -> None:
    in_groups([1, 1], compiled_inside if inside else compiled_outside)


def compiled_inside(group: dist.ProcessGroup) -> None:
    compiled(group, inside=True)


def compiled_outside(group: dist.ProcessGroup) -> None:
    compiled(group, inside=False)


TWO_JOBS = """
import os, sys, torch, torch.distributed as dist, gradwire
dist.init_process_group("grpc")
tensor = torch.full((50_000,), float(sys.argv[1]))
for _ in range(20):
    tensor.fill_(float(sys.argv[1]))
    dist.all_reduce(tensor)
print(tensor.unique().tolist())
dist.destroy_process_group()
"""


@pytest.mark.case("R18")
def test_two_jobs_share_the_daemons_and_nothing_else(daemons: Cluster) -> None:
    stores = [
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in "ab"
    ]
    ranks = [
        start_rank(daemons.addresses[rank], job, rank, stores[job].port)
        for job in range(2)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4, outputs
    assert [out.strip() for out, _ in outputs] == ["[2.0]", "[2.0]", "[4.0]", "[4.0]"]


def start_rank(daemon: str, job: int, rank: int, port: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "GRADWIRE_DAEMON": daemon,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return subprocess.Popen(
        [sys.executable, "-c", TWO_JOBS, str(job + 1)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.case("E01")
@pytest.mark.timeout(180)
def test_the_tutorials_script_runs_without_a_daemon_and_without_a_warning() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE],
        env={**os.environ, "MASTER_PORT": str(port), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    # Four processes write to one pipe: a line's end may come behind the next line's beginning.
    sums = re.findall(r"rank \d: weights add up to (-?\d+\.\d{6})", done.stdout)
    assert len(sums) == 4
    assert len(set(sums)) == 1
