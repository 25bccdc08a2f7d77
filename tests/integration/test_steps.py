"""What belongs to one step: several models, closures, what a wire owes after a bad step."""

# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session

InProcesses: TypeAlias = Callable[..., list[Any]]

NAN = float("nan")
SKIP = [{"GRADWIRE_NONFINITE": "skip"}] * 2


def network(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 30))


def replica(session: Session, module: nn.Module, cap: float = 25) -> DistributedDataParallel:
    model = DistributedDataParallel(module, bucket_cap_mb=cap)
    model.register_comm_hook(session, gradwire.allreduce_hook)
    return model


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in module.parameters()])


def gradients(module: nn.Module) -> torch.Tensor:
    parts = [each.grad.flatten() for each in module.parameters() if each.grad is not None]
    return torch.cat(parts)


# -- several models, and closures


def one_backward(session: Session, bad: int) -> tuple[list[bool], int, int]:
    """Whether the models stood still in the step in which one has a NaN."""
    modules = [network(1), network(2)]
    models = [replica(session, module, cap=0.005) for module in modules]
    parameters = [each for module in modules for each in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    stood = []
    for step in range(3):
        before = [flat(module) for module in modules]
        optimizer.zero_grad()
        losses = [model(torch.ones(2, 40)).square().mean() for model in models]
        if step == 1 and session.rank == 1:
            losses[bad] = losses[bad] * NAN
        (losses[0] + losses[1]).backward()
        optimizer.step()
        now = [flat(module) for module in modules]
        stood += [torch.equal(*pair) for pair in zip(now, before, strict=True)]
    return stood, session.step, session.skipped_steps


@pytest.mark.case("M08")
@pytest.mark.parametrize("bad", [0, 1])
def test_one_backward_pass_is_one_step_whatever_the_number_of_models(
    in_processes: InProcesses, bad: int
) -> None:
    for outcome in in_processes((1, 1), one_backward, bad, environments=SKIP):
        assert outcome == ([False, False, True, True, False, False], 3, 1)


def with_closure(session: Session, name: str) -> list[bool]:
    """Whether the model stood still in a good, a bad and a good step."""
    module = network()
    model = replica(session, module)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    stood = []
    for step in range(3):
        factor = NAN if step == 1 and session.rank == 1 else 1.0

        def closure(factor: float = factor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(torch.ones(2, 40)).square().mean()
            (loss * factor).backward()
            return loss.detach()

        before = flat(module)
        optimizer.step(closure)
        stood.append(bool(torch.equal(flat(module), before)))
        assert flat(module).isfinite().all()
    return stood


@pytest.mark.case("M08")
@pytest.mark.parametrize("name", ["SGD", "AdamW", "LBFGS"])
def test_a_closure_has_no_bad_gradients_either(in_processes: InProcesses, name: str) -> None:
    for stood in in_processes((1, 1), with_closure, name, environments=SKIP):
        assert stood == [False, True, False]


def mixed_policies(session: Session) -> str:
    with pytest.raises(gradwire.MismatchError) as caught:
        session.all_reduce(torch.ones(5)).wait()
    return str(caught.value)


def test_ranks_of_different_policies_are_told_so(in_processes: InProcesses) -> None:
    policies = [{"GRADWIRE_NONFINITE": each} for each in ("raise", "skip")]
    for text in in_processes((1, 1), mixed_policies, environments=policies):
        assert "with nonfinite raise" in text
        assert "with nonfinite skip" in text


# -- what a wire owes


def overflowing(session: Session, wire: str, policy: str, cap: float) -> list[float]:
    """The largest gradient of each step; one of them overflows in one parameter."""
    module = network()
    model = DistributedDataParallel(module, bucket_cap_mb=cap)
    largest = []
    with gradwire.connect(
        daemon=session.daemon, wire=wire, model=model, nonfinite=policy
    ) as own:
        model.register_comm_hook(own, gradwire.allreduce_hook)
        for step in range(6):
            torch.manual_seed(10 * step + session.rank)
            model.zero_grad()
            loss = model(torch.randn(4, 40)).square().mean()
            if step == 3:
                loss = loss * 1e30 + list(module.parameters())[-1][0] * torch.inf
            try:
                loss.backward()
            except RuntimeError:
                assert policy == "raise"
            if step != 3:
                largest.append(gradients(module).abs().max().item())
    return largest


@pytest.mark.case("M08")
@pytest.mark.parametrize("wire", ["int8", "topk:ratio=0.1"])
@pytest.mark.parametrize("policy", ["pass", "skip", "raise"])
@pytest.mark.parametrize("cap", [25.0, 0.005])
def test_nothing_of_a_step_that_overflowed_is_ever_made_good(
    in_processes: InProcesses, wire: str, policy: str, cap: float
) -> None:
    """Not in the bucket with the infinity, nor in the others of the step."""
    for largest in in_processes((1, 1), overflowing, wire, policy, cap):
        assert max(largest) < 10 * max(largest[:3])


def namesakes(session: Session) -> float:
    """The largest gradient of a model whose namesake has very large ones."""
    first, second = network(1), network(1)
    models = [DistributedDataParallel(each) for each in (first, second)]
    with gradwire.connect(daemon=session.daemon, wire="topk:ratio=0.1", model=models[0]) as own:
        own.watch(models[1])
        for model in models:
            model.register_comm_hook(own, gradwire.allreduce_hook)
        for _ in range(3):
            models[0](torch.ones(2, 40)).mul(1e6).sum().backward()
        models[1](torch.ones(2, 40)).sum().backward()
    return gradients(second).abs().max().item()


@pytest.mark.case("M10")
def test_models_with_the_same_names_owe_each_other_nothing(in_processes: InProcesses) -> None:
    assert max(in_processes((1, 1), namesakes)) < 1e3


def resumed(session: Session) -> tuple[list[str], list[str]]:
    """What a checkpoint is about, and what the daemon keeps of it after two more steps."""
    module = network()
    model = DistributedDataParallel(module)
    states: list[dict[str, Any]] = []
    for steps in (5, 2):
        with gradwire.connect(daemon=session.daemon, wire="topk", model=model) as own:
            if states:
                own.load_state_dict(states[0])
                model = DistributedDataParallel(module)
            model.register_comm_hook(own, gradwire.allreduce_hook)
            for step in range(steps):
                torch.manual_seed(10 * step + session.rank)
                model(torch.randn(4, 40)).square().mean().backward()
            states.append(own.state_dict())
    kept = [[each["about"] for each in state["residuals"][0].values()] for state in states]
    return kept[0], kept[1]


@pytest.mark.case("M10")
def test_a_checkpoint_has_nothing_of_buckets_that_are_no_more(
    in_processes: InProcesses,
) -> None:
    for first, second in in_processes((1, 1), resumed):
        assert len(first) == 1, "the bucket of the first step is gone"
        assert second == first


# -- what is too small, and what has no share


def group_sums(_: object) -> list[float]:
    tensor = torch.tensor([3.0, 100.0]) + torch.distributed.get_rank()
    torch.distributed.all_reduce(tensor)
    return tensor.tolist()


def test_small_sums_of_a_group_are_exact_over_any_wire(in_groups: InProcesses) -> None:
    wires = [{"GRADWIRE_WIRE": "topk:ratio=0.05"}] * 2
    assert in_groups((1, 1), group_sums, environments=wires) == [[7.0, 201.0]] * 2
