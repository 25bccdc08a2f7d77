# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import warnings
import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session

InProcesses: TypeAlias = Callable[..., list[Any]]


class Powers(nn.Module):
    """Torch's own yardstick for hooks: one parameter, other inputs on each rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.p = nn.Parameter(torch.randn(40, 20))

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        return self.p * x ** (1 + rank)


class Given(nn.Module):
    """Parameters whose gradients are what the rank says."""

    def __init__(self, *sizes: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]
        )

    def forward(self, gradient: float) -> torch.Tensor:
        return torch.stack([(weight * gradient).sum() for weight in self.weights]).sum()


class Mixed(nn.Module):
    """Layers of four dtypes; the fp32 and the bf16 one have 20 elements each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.fp32 = nn.Linear(4, 5, bias=False)
        self.fp64 = nn.Linear(5, 4, bias=False, dtype=torch.float64)
        self.bf16 = nn.Linear(4, 5, bias=False, dtype=torch.bfloat16)
        self.c64 = nn.Linear(5, 4, bias=False, dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fp32(x)
        x = self.fp64(x.double())
        x = self.bf16(x.bfloat16())
        total: torch.Tensor = self.c64(x.to(torch.complex64)).abs().sum()
        return total


def hooked(session: Session, model: DistributedDataParallel) -> DistributedDataParallel:
    model.register_comm_hook(session, gradwire.allreduce_hook)
    return model


def gradients(model: nn.Module) -> list[list[float]]:
    return [
        torch.view_as_real(parameter.grad).flatten().tolist()
        if parameter.grad.is_complex()
        else parameter.grad.flatten().tolist()
        for parameter in model.parameters()
        if parameter.grad is not None
    ]


def powers(session: Session) -> tuple[list[list[float]], list[list[float]]]:
    results = []
    for hook in (True, False):
        model = DistributedDataParallel(Powers())
        if hook:
            hooked(session, model)
        torch.manual_seed(1)
        model(torch.rand(40, 20), session.rank).mean().backward()
        results.append(gradients(model))
    return results[0], results[1]


@pytest.mark.case("M01")
@pytest.mark.parametrize("layout", [(1, 1), (2, 2)])
def test_the_hook_agrees_with_gloo_and_all_ranks_to_the_bit(
    in_processes: InProcesses, layout: tuple[int, ...]
) -> None:
    results = in_processes(layout, powers)
    ours, gloos = results[0]
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(gloos), rtol=1e-5, atol=0)
    assert [other for other, _ in results] == [ours] * sum(layout)


def given(session: Session, values: list[float], dtype: str, compress: bool) -> list[float]:
    """The averaged gradient, and what one step of SGD made of a parameter of zeros."""
    module = Given(1, 1000, dtype=getattr(torch, dtype))
    model = DistributedDataParallel(module)
    hook = fp16_compress_wrapper(gradwire.allreduce_hook) if compress else None
    model.register_comm_hook(session, hook or gradwire.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(values[session.rank]).backward()
    averaged = {value for one in gradients(model) for value in one}
    optimizer.step()
    stepped = {-value for weight in model.parameters() for value in weight.tolist()}
    assert stepped == averaged
    return sorted(averaged)


@pytest.mark.case("M03")
@pytest.mark.parametrize("layout", [(2,), (1, 1)])
def test_ddp_averages_once(in_processes: InProcesses, layout: tuple[int, ...]) -> None:
    assert in_processes(layout, given, [1.0, 3.0], "float32", False) == [[2.0]] * 2


@pytest.mark.case("M05")
@pytest.mark.parametrize("layout", [(3, 1), (1, 2, 1), (1, 3)])
def test_ddp_counts_ranks_not_nodes(in_processes: InProcesses, layout: tuple[int, ...]) -> None:
    results = in_processes(layout, given, [1.0, 2.0, 3.0, 10.0], "float32", False)
    assert results == [[4.0]] * 4


@pytest.mark.case("M06")
@pytest.mark.parametrize(
    ("value", "dtype", "compress"),
    [
        (40000.0, "float16", False),
        (40000.0, "float32", True),
        (2.0**-24, "float16", False),
        (2.0**-24, "float32", True),
        (torch.tensor(3e38).item(), "float32", False),
    ],
)
def test_averaged_gradients_neither_overflow_nor_vanish(
    in_processes: InProcesses, value: float, dtype: str, compress: bool
) -> None:
    assert in_processes((2, 2), given, [value] * 4, dtype, compress) == [[value]] * 4


@pytest.mark.case("M07")
def test_averaged_bfloat16_gradients_are_rounded_once(in_processes: InProcesses) -> None:
    for large in range(4):
        values = [256.0 if rank == large else 1.0 for rank in range(4)]
        # 259 / 4 = 64.75, which bfloat16 rounds to 65; partial sums in it would give 64.
        assert in_processes((1, 1, 2), given, values, "bfloat16", False) == [[65.0]] * 4


def mixed(session: Session, hook: bool) -> tuple[list[list[list[float]]], list[list[str]]]:
    """All gradients of three steps, and the dtypes of each step's buckets."""
    steps: list[list[str]] = []

    def noting(state: Session, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        steps[-1].append(str(bucket.buffer().dtype))
        return gradwire.allreduce_hook(state, bucket)

    model = DistributedDataParallel(Mixed())
    if hook:
        model.register_comm_hook(session, noting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(session.rank)
    collected = []
    for _ in range(3):
        steps.append([])
        optimizer.zero_grad()
        model(torch.randn(3, 4)).backward()
        collected.append(gradients(model))
        optimizer.step()
    return collected, steps


@pytest.mark.case("M23")
def test_a_model_of_four_dtypes_agrees_with_gloo(in_processes: InProcesses) -> None:
    layout = (1, 2)
    ours = in_processes(layout, mixed, True)
    (gloos, _), *_ = in_processes(layout, mixed, False)
    gradients, steps = ours[0]
    assert [other for other, _ in ours] == [gradients] * 3
    assert set(steps[0]) == {f"torch.float{bits}" for bits in (32, 64)} | {"torch.bfloat16"}
    assert steps[0] != steps[1], "DDP has rebuilt its buckets"
    for one, other in zip(gradients, gloos, strict=True):
        for ours_, gloos_ in zip(one, other, strict=True):
            # Everything passes through the bfloat16 layer, which gloo rounds more than once.
            torch.testing.assert_close(
                torch.tensor(ours_), torch.tensor(gloos_), rtol=0.02, atol=0.02
            )


def tiny(session: Session) -> list[Any]:
    results: list[Any] = []
    for sizes in ((1,), (2,), (3,), (3, 0), (0, 1, 0)):
        model = hooked(session, DistributedDataParallel(Given(*sizes)))
        for _ in range(2):
            model.zero_grad()
            model(session.rank + 1.0).backward()
        results.append(gradients(model))
    return results


@pytest.mark.case("M24")
@pytest.mark.parametrize("layout", [(4,), (1, 1, 1, 1), (2, 1, 1)])
def test_buckets_of_one_to_three_elements(
    in_processes: InProcesses, layout: tuple[int, ...]
) -> None:
    expected = [[[2.5]], [[2.5] * 2], [[2.5] * 3], [[2.5] * 3, []], [[], [2.5], []]]
    assert in_processes(layout, tiny) == [expected] * 4


class Beside(nn.Module):
    """Layers whose outputs stand beside one another."""

    def __init__(self, *outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, width) for width in outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.layers], dim=1).sum()


def empty_layers(session: Session) -> list[tuple[list[list[float]], int]]:
    """Gradients, and rounds that two steps took."""
    results = []
    for outputs in ((0,), (0, 2)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Initializing zero-element tensors")
            model = hooked(session, DistributedDataParallel(Beside(*outputs)))
        rounds = session.stats.rounds
        for _ in range(2):
            model.zero_grad()
            model(torch.full((1, 4), session.rank + 1.0)).backward()
        results.append((gradients(model), session.stats.rounds - rounds))
    return results


@pytest.mark.case("M24")
def test_layers_without_outputs(in_processes: InProcesses) -> None:
    expected = [([[], []], 2), ([[], [], [2.5] * 8, [1.0] * 2], 2)]
    assert in_processes((2, 1, 1), empty_layers) == [expected] * 4


def capped(session: Session, caps: list[int]) -> tuple[list[list[int]], list[int], float]:
    """With each cap: digests of every step's gradients, buckets; and how far caps deviate."""
    digests: list[list[int]] = []
    buckets: list[int] = []
    finals: list[list[torch.Tensor]] = []
    for cap in caps:
        torch.manual_seed(5)
        module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
        model = hooked(session, DistributedDataParallel(module, bucket_cap_mb=cap))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(session.rank)
        digests.append([])
        for _ in range(5):
            before = session.stats.rounds
            optimizer.zero_grad()
            model(torch.randn(2, 1024)).square().mean().backward()
            optimizer.step()
            digests[-1].append(checksum(model))
        buckets.append(session.stats.rounds - before)
        finals.append([one.grad for one in model.parameters() if one.grad is not None])
    worst = max(
        float((one - other).norm() / one.norm())
        for final in finals[1:]
        for one, other in zip(finals[0], final, strict=True)
    )
    return digests, buckets, worst


def checksum(model: nn.Module) -> int:
    """Of the bits of all gradients; SHA would take longer than the training."""
    value = 0
    for parameter in model.parameters():
        assert parameter.grad is not None
        value = zlib.crc32(parameter.grad.numpy().data, value)
    return value


@pytest.mark.case("M27")
def test_the_size_of_buckets_does_not_change_the_result(in_processes: InProcesses) -> None:
    results = in_processes((1, 1, 1), capped, [1, 25, 100])
    digests, buckets, deviation = results[0]
    assert [other for other, _, _ in results] == [digests] * 3
    assert buckets[0] > buckets[1] > buckets[2] == 1
    assert deviation < 1e-6
