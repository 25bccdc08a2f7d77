"""Gradients that are not finite, under DDP: with the hook, and with the backend."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session, _nonfinite

InProcesses: TypeAlias = Callable[..., list[Any]]

INF, NAN = float("inf"), float("nan")


class Given(nn.Module):
    """Parameters whose gradients are what the caller says."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in sizes])

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        pairs = zip(self.weights, gradients, strict=True)
        return torch.stack([(weight * gradient).sum() for weight, gradient in pairs]).sum()


class Heard(logging.Handler):
    """Keeps what a rank warns of."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def given(rank: int, bad: dict[int, float], sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """Gradients of rank + 1, and of some ranks something else at index 7 of the first."""
    gradients = [torch.full((size,), rank + 1.0) for size in sizes]
    if rank in bad:
        gradients[0][7] = bad[rank]
    return gradients


BAD = [{3: NAN}, {3: INF}, {2: INF, 3: -INF}]
"""What ranks bring in steps 2, 3 and 4 of six."""

SIZES = (10, 300)


def train(
    module: nn.Module, rank: int, scaled: bool, skips: Callable[[], bool]
) -> dict[str, Any]:
    """Six steps, of which three have gradients that are not finite."""
    inner = module.module
    assert isinstance(inner, Given)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.125, momentum=0.5, weight_decay=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100, enabled=scaled)
    result: dict[str, Any] = {"bad": [], "skipped": [], "changed": [], "scales": []}
    for step in range(1, 7):
        bad = BAD[step - 2] if 2 <= step <= 4 else {}
        before = [weight.detach().clone() for weight in inner.weights]
        optimizer.zero_grad()
        scaler.scale(module(given(rank, bad, SIZES))).backward()
        grads = torch.cat([one.grad for one in inner.weights if one.grad is not None])
        result["bad"].append(grads.isfinite().logical_not().nonzero().flatten().tolist())
        result["skipped"].append(skips())
        scaler.step(optimizer)
        scaler.update()
        after = torch.cat([*inner.weights])
        result["changed"].append(not torch.equal(torch.cat(before), after))
        result["scales"].append(scaler.get_scale() if scaled else 0.0)
    result["weights"] = torch.cat([*inner.weights]).tolist()
    return result


GOOD_AND_BAD = [False, True, True, True, False, False]


def hooked(session: Session, scaled: bool, views: bool, several: bool) -> dict[str, Any]:
    module = Given(*SIZES)
    replica = DistributedDataParallel(
        module, gradient_as_bucket_view=views, bucket_cap_mb=0.0001 if several else 25
    )
    replica.register_comm_hook(session, gradwire.allreduce_hook)
    result = train(replica, session.rank, scaled, lambda: session.skips_step)
    return result | {"steps": session.step, "count": session.skipped_steps}


def expected_weights() -> list[float]:
    """After the three good steps alone."""
    module = Given(*SIZES)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.125, momentum=0.5, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        module([torch.full((size,), 2.5) for size in SIZES]).backward()
        optimizer.step()
    return torch.cat([*module.weights]).tolist()


@pytest.mark.case("M08")
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_all_ranks_skip_the_same_steps(
    in_processes: InProcesses, scaled: bool, views: bool, several: bool
) -> None:
    results = in_processes(
        (2, 2),
        hooked,
        scaled,
        views,
        several,
        environments=[{"GRADWIRE_NONFINITE": "skip"}] * 4,
    )
    assert results == [results[0]] * 4
    result = results[0]
    assert result["bad"] == [[7] if bad else [] for bad in GOOD_AND_BAD]
    assert result["skipped"] == GOOD_AND_BAD
    assert result["changed"] == [not bad for bad in GOOD_AND_BAD]
    assert result["scales"] == ([4.0, 2.0, 1.0, 0.5, 0.5, 0.5] if scaled else [0.0] * 6)
    assert (result["steps"], result["count"]) == (6, 3)
    torch.testing.assert_close(result["weights"], expected_weights(), rtol=1e-6, atol=0)


def grouped(group: dist.ProcessGroup) -> dict[str, Any]:
    replica = DistributedDataParallel(Given(*SIZES))
    return train(replica, group.rank(), scaled=True, skips=lambda: False)


@pytest.mark.case("M08")
def test_a_scaler_skips_the_same_steps_on_all_ranks_of_a_group(in_groups: InProcesses) -> None:
    results = in_groups((2, 2), grouped)
    assert results == [results[0]] * 4
    assert results[0]["bad"] == [[7] if bad else [] for bad in GOOD_AND_BAD]
    assert results[0]["changed"] == [not bad for bad in GOOD_AND_BAD]
    assert results[0]["scales"] == [4.0, 2.0, 1.0, 0.5, 0.5, 0.5]


def grouped_raising(group: dist.ProcessGroup) -> str:
    tensor = torch.ones(10)
    if group.rank() == 3:
        tensor[7] = NAN
    with pytest.raises(gradwire.NonFiniteError) as caught:
        dist.all_reduce(tensor)
    assert caught.value.rank == 3
    dist.all_reduce(torch.ones(2))
    return str(caught.value)


@pytest.mark.case("M08")
def test_a_group_raises_where_it_is_told_to(in_groups: InProcesses) -> None:
    texts = in_groups(
        (2, 2), grouped_raising, environments=[{"GRADWIRE_NONFINITE": "raise"}] * 4
    )
    words = "rank 3 of node 1 brought a NaN or an infinity at element 7 of a tensor [10]"
    assert [text.startswith(words) for text in texts] == [True] * 4


def warned(session: Session, named: bool) -> tuple[list[str], str]:
    """What a rank warns of in its second step, and what backward raises, if it does."""
    heard = Heard()
    _nonfinite.log.addHandler(heard)
    raised = ""
    try:
        module = Given(*SIZES)
        replica = DistributedDataParallel(module, bucket_cap_mb=0.0001)
        if named:
            session.watch(replica)
        replica.register_comm_hook(session, gradwire.allreduce_hook)
        for bad in ({}, {3: NAN}):
            replica(given(session.rank, bad, SIZES)).backward()
    except RuntimeError as error:
        raised = str(error)
    finally:
        _nonfinite.log.removeHandler(heard)
    assert session.all_reduce(torch.ones(1), "sum").wait().item() == 4.0
    return heard.texts, raised


@pytest.mark.case("M08")
@pytest.mark.parametrize(
    ("named", "where"),
    [
        (True, "element 7 of weights.0 [10], in step 2"),
        (False, "element 7 of bucket 1, which is element 7 of a parameter [10], in step 2"),
    ],
)
@pytest.mark.parametrize("policy", ["pass", "skip", "raise"])
def test_the_parameter_and_the_step_are_told(
    in_processes: InProcesses, named: bool, where: str, policy: str
) -> None:
    environments = [{"GRADWIRE_NONFINITE": policy}] * 4
    results = in_processes((2, 2), warned, named, environments=environments)
    words = f"rank 3 of node 1 brought a NaN or an infinity at {where}"
    match policy:
        case "pass":
            assert results == [([], "")] * 3 + [([words], "")]
        case "skip":
            text = f"{words}; the step is skipped, on all ranks"
            assert results == [([text], "")] * 4
        case _:
            for texts, raised in results:
                assert texts == []
                assert f"{words}; the result is not finite, on any rank" in raised


def by_optimizer(session: Session, name: str) -> list[bool]:
    """Whether a good, a bad and a good step have changed anything."""
    module = nn.Linear(3, 2)
    replica = DistributedDataParallel(module)
    replica.register_comm_hook(session, gradwire.allreduce_hook)
    optimizer = getattr(torch.optim, name)(replica.parameters(), weight_decay=0.1, lr=0.1)
    changed = []
    for step in range(3):
        before = [parameter.detach().clone() for parameter in module.parameters()]
        states = str(optimizer.state_dict())
        optimizer.zero_grad()
        factor = NAN if step == 1 and session.rank == 1 else 1.0
        (replica(torch.ones(1, 3)).sum() * factor).backward()
        optimizer.step()
        same = all(map(torch.equal, before, module.parameters()))
        changed.append(not same or states != str(optimizer.state_dict()))
    return changed


@pytest.mark.case("M08")
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam"])
def test_no_optimizer_does_anything_in_a_step_that_is_skipped(
    in_processes: InProcesses, name: str
) -> None:
    environments = [{"GRADWIRE_NONFINITE": "skip"}] * 2
    results = in_processes((1, 1), by_optimizer, name, environments=environments)
    assert results == [[True, False, True]] * 2


def two_models(session: Session) -> list[bool]:
    """Two models, one backward each, then both optimizers: only the bad one stands still."""
    modules = [Given(10), Given(10)]
    replicas = [DistributedDataParallel(module) for module in modules]
    for replica in replicas:
        replica.register_comm_hook(session, gradwire.allreduce_hook)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]
    for replica, bad in zip(replicas, ({0: NAN}, {}), strict=True):
        replica(given(session.rank, bad, (10,))).backward()
    for optimizer in optimizers:
        optimizer.step()
    session.close()
    # What comes after the session is no matter of its.
    modules[0](given(0, {}, (10,))).backward()
    return [bool((module.weights[0] == 1.0).all()) for module in modules]


@pytest.mark.case("M08")
def test_of_two_models_only_the_one_with_the_nan_stands_still(
    in_processes: InProcesses,
) -> None:
    environments = [{"GRADWIRE_NONFINITE": "skip"}] * 2
    assert in_processes((1, 1), two_models, environments=environments) == [[True, False]] * 2


# -- fp16 with loss scaling


def scaled_training(session: Session, hook: bool) -> list[float]:
    """Losses of a small convolutional net, in fp16 with loss scaling, over 30 steps."""
    torch.manual_seed(11)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 10)
    ).half()
    replica = DistributedDataParallel(module)
    if hook:
        replica.register_comm_hook(session, gradwire.allreduce_hook)
    masters = [each.detach().float().requires_grad_() for each in module.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.02, momentum=0.9)
    draw = torch.Generator().manual_seed(100 + session.rank)
    losses = []
    for _ in range(30):
        labels = torch.randint(10, (16,), generator=draw)
        images = torch.randn(16, 1, 8, 8, generator=draw) * 0.3
        images[torch.arange(16), 0, labels % 8, labels // 8] += 3.0
        replica.zero_grad()
        loss = nn.functional.cross_entropy(replica(images.half()).float(), labels)
        (loss * 2.0**15).backward()
        for master, half in zip(masters, module.parameters(), strict=True):
            assert half.grad is not None
            master.grad = half.grad.float() / 2.0**15
        optimizer.step()
        with torch.no_grad():
            for master, half in zip(masters, module.parameters(), strict=True):
                half.copy_(master)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / 4)
    return losses


@pytest.mark.case("M15")
def test_fp16_with_loss_scaling_learns_as_with_gloo(in_processes: InProcesses) -> None:
    ours = in_processes((2, 2), scaled_training, True)
    gloos = in_processes((2, 2), scaled_training, False)
    assert ours == [ours[0]] * 4
    assert ours[0][-1] < 0.7 * ours[0][0]
    torch.testing.assert_close(ours[0], gloos[0], rtol=0.02, atol=0.01)
