"""One rank process of the crew (see conftest): calls functions of test files, on order.

Each call gets a process group over gloo and a session, or a group over grpc; they end with it.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import traceback
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import gradwire

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import ModuleType

PATIENCE_SECONDS = 30.0


def serve(orders: Connection) -> None:
    """Carry out orders until the other end hangs up; what a function raises is sent as text."""
    torch.set_num_threads(1)
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        try:
            outcome = (True, carry_out(**order))
        except BaseException:  # noqa: BLE001 - whatever it is, the test must show it
            outcome = (False, traceback.format_exc())
        orders.send(outcome)


def carry_out(  # noqa: PLR0913 - the fields of an order
    *,
    place: tuple[int, int],
    store: tuple[int, str],
    daemon: str,
    environment: dict[str, str],
    call: tuple[str, str, tuple[Any, ...]],
    backend: str,
) -> object:
    """Call a file's function as rank `place[0]` of `place[1]`, with a session and arguments."""
    before = dict(os.environ)
    os.environ.update({"GRADWIRE_DAEMON": daemon} if backend == "grpc" else {})
    os.environ.update(environment)
    (rank, world_size), (port, name) = place, store
    patience = timedelta(seconds=PATIENCE_SECONDS)
    meeting = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(name, meeting),
        rank=rank,
        world_size=world_size,
        timeout=patience,
    )
    path, function, arguments = call
    try:
        if backend == "grpc":
            return getattr(load(path), function)(dist.group.WORLD, *arguments)
        with gradwire.connect(
            daemon=daemon, timeout=PATIENCE_SECONDS, connect_timeout=PATIENCE_SECONDS
        ) as session:
            return getattr(load(path), function)(session, *arguments)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(before)
        gc.collect()


@cache
def load(path: str) -> ModuleType:
    """The test file as a module."""
    spec = importlib.util.spec_from_file_location(f"crew:{path}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "crew":
    serve(globals()["ORDERS"])
