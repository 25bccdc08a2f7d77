from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire._names import Names


def test_parameters_are_called_what_their_model_calls_them() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
    names = Names()
    names.watch(model)
    assert [names.of(each) for each in model.parameters()] == ["0.weight", "0.bias", "1.weight"]
    assert [name for name, _ in names.items()] == ["0.weight", "0.bias", "1.weight"]
    assert names.of(torch.ones(2)) is None


def test_a_model_inside_of_ddp_is_named_without_it() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(2, 3))
        names = Names()
        names.watch(model)
        assert [names.of(each) for each in model.parameters()] == ["weight", "bias"]
    finally:
        dist.destroy_process_group()


def test_a_model_that_is_gone_is_not_kept() -> None:
    model = nn.Linear(2, 3)
    names = Names()
    names.watch(model)
    del model
    gc.collect()
    assert names.items() == []


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got list"):
        Names().watch([])  # type: ignore[arg-type]
