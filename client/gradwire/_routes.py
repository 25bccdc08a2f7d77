"""Which backend serves a device: "cpu:grpc,cuda:nccl" is one group with two of them.

torch hands all tensors of a group to a process group written in Python, and makes none of the
other backends that the string names. So they are made here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup

if TYPE_CHECKING:
    from datetime import timedelta

    from torch._C._distributed_c10d import Backend

NAME = "grpc"


class Routes:
    """The backends of one group, by device; those that are not ours are made on first use."""

    def __init__(self, group: ProcessGroup, store: dist.Store, timeout: timedelta) -> None:
        self._group = group
        self._store = store
        self._timeout = timeout
        self._names: dict[str, str] | None = None
        self._inner: ProcessGroup | None = None
        self._making = threading.Lock()
        self.placeholder = _placeholder(group.rank(), group.size())

    def other(self, device: torch.device) -> ProcessGroup | None:
        """The group to hand tensors of this device on to; None where they are ours.

        Raises RuntimeError for a device that has no backend, or where it can't be known.
        """
        name = self.names().get(device.type)
        if name == NAME:
            return None
        if name is None:
            raise RuntimeError(
                f"this group has no backend for tensors on {device}; it has"
                f" {self.names()}. Name one: init_process_group('cpu:grpc,{device.type}:...')"
            )
        return self._others()

    def backend(self, device: torch.device) -> Backend:
        """The backend object that torch asks for; ours is a placeholder that does nothing."""
        name = self.names().get(device.type, NAME)
        if name == NAME:
            return self.placeholder
        return self._others()._get_backend(device)  # noqa: SLF001 - as torch itself does

    def names(self) -> dict[str, str]:
        """Backend of each device."""
        if self._names is None:
            # torch knows them as soon as the group is complete, a little after it was made.
            try:
                text = dist.get_backend_config(self._group)
            except (RuntimeError, ValueError, KeyError, AssertionError):
                return {"cpu": NAME}
            self._names = dict(pair.split(":") for pair in text.split(","))
        return self._names

    def close(self) -> None:
        """Shut down what was made for other devices."""
        with self._making:
            inner, self._inner = self._inner, None
        if inner is not None:
            inner.shutdown()

    def _others(self) -> ProcessGroup:
        with self._making:
            if self._inner is None:
                group = self._group
                inner = ProcessGroup(self._store, group.rank(), group.size())
                for device, name in self.names().items():
                    if name != NAME:
                        self._add(inner, device, name)
                self._inner = inner
            return self._inner

    def _add(self, inner: ProcessGroup, device: str, name: str) -> None:
        store = PrefixStore(f"{NAME}/{device}/", self._store)
        rank, size = inner.rank(), inner.size()
        backend: Any
        if name == dist.Backend.NCCL and dist.is_nccl_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout  # noqa: SLF001 - as torch itself does
            backend = dist.ProcessGroupNCCL(store, rank, size, options)
            kind = ProcessGroup.BackendType.NCCL
        elif name == dist.Backend.GLOO and dist.is_gloo_available():
            backend = dist.ProcessGroupGloo(store, rank, size, timeout=self._timeout)
            kind = ProcessGroup.BackendType.GLOO
        else:
            raise NotImplementedError(
                f"{device}:{name} can't stand beside grpc in one group; nccl and gloo can,"
                " where torch has them"
            )
        inner._register_backend(torch.device(device), kind, backend)  # noqa: SLF001 - as above
        inner._set_default_backend(kind)  # noqa: SLF001 - as above


def _placeholder(rank: int, size: int) -> Backend:
    """A backend to ask for its properties. No collective comes to it; it refuses them."""
    fake: Any = torch._C._distributed_c10d.FakeProcessGroup  # noqa: SLF001 - torch has no other
    backend: Backend
    if not hasattr(fake, "_create_internal"):
        backend = fake(rank, size)
        return backend
    options = fake.Options()
    options.error_on_collective = True
    backend = fake._create_internal(rank, size, options)  # noqa: SLF001 - as above
    return backend
