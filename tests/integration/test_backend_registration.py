"""The backend is there as soon as torch is, and costs next to nothing until it is used."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from datetime import timedelta
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

InGroups: TypeAlias = "Callable[..., list[Any]]"

MOST_SECONDS = 0.05
"""Ten times what is aimed at: the machine may be busy."""

installed = pytest.mark.skipif(
    not [
        each
        for each in metadata.entry_points(group="torch.backends")
        if each.name == "gradwire"
    ],
    reason="gradwire was installed before it had an entry point; run make setup",
)


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@installed
def test_importing_torch_is_enough_and_loads_nothing_of_grpc() -> None:
    code = """
        import sys, torch.distributed as dist
        loaded = {"grpc", "gradwire", "google.protobuf"} & set(sys.modules)
        print("grpc" in dist.Backend.backend_list, loaded)
    """
    assert python(code) == "True set()"


def test_registration_takes_milliseconds() -> None:
    code = """
        import time, torch
        begin = time.perf_counter()
        import gradwire_backend
        gradwire_backend.register()
        print(time.perf_counter() - begin)
    """
    seconds = min(float(python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) for _ in range(3))
    assert seconds < MOST_SECONDS


def test_importing_gradwire_registers_where_torch_loads_no_backends() -> None:
    code = """
        import gradwire, torch.distributed as dist, sys
        print("grpc" in dist.Backend.backend_list, "grpc" in sys.modules)
    """
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "True False"


def test_importing_gradwire_alone_does_not_load_torch() -> None:
    assert python("import gradwire, sys; print('torch' in sys.modules)") == "False"


def test_an_error_in_the_registration_does_not_reach_torch() -> None:
    code = """
        import logging, torch.distributed as dist, gradwire_backend
        logging.disable()
        dist.Backend.backend_list.clear()
        dist.Backend.register_backend = None
        gradwire_backend.register()
        print("on we go")
    """
    assert python(code) == "on we go"


# -- several backends in one group


def mixed(group: dist.ProcessGroup, names: str) -> list[Any]:
    rank, size = group.rank(), group.size()
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no other
    dist.destroy_process_group()
    patience = timedelta(seconds=30)
    dist.init_process_group(names, store=store, rank=rank, world_size=size, timeout=patience)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    served = type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__  # type: ignore[union-attr]  # noqa: SLF001
    outcome: list[Any] = [tensor.tolist(), served]
    meta = torch.ones(2, device="meta")
    try:
        dist.all_reduce(meta)
    except RuntimeError as error:
        outcome.append(str(error))
    return outcome


@pytest.mark.parametrize(
    ("names", "server"),
    [
        ("cpu:grpc,cuda:nccl", "FakeProcessGroup"),
        ("cuda:grpc,cpu:gloo", "ProcessGroupGloo"),
    ],
)
def test_each_device_has_the_backend_that_its_name_says(
    in_groups: InGroups, names: str, server: str
) -> None:
    for reduced, served, refusal in in_groups([1, 1], mixed, names):
        assert reduced == [2.0, 2.0]
        assert served == server
        assert "no backend for tensors on meta" in refusal
