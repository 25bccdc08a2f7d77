"""The backend "grpc" of torch.distributed: one session behind all of c10d's collectives."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from gradwire._connect import connect
from gradwire._exchanging import Exchanging
from gradwire._gathering import Gathering
from gradwire._group import Group
from gradwire._reducing import Reducing
from gradwire._routes import NAME, Routes
from gradwire._uncompiled import uncompiled
from gradwire._work import Works

if TYPE_CHECKING:
    from datetime import timedelta

    from torch._C._distributed_c10d import Backend, _DistributedBackendOptions
    from torch.distributed import Store

    from gradwire._work import Work

log = logging.getLogger(__name__)

LEAST_CONNECT_SECONDS = 30.0


def create(options: _DistributedBackendOptions, backend_options: object) -> ProcessGroup:
    """The factory that torch knows. Raises ConnectError."""
    if backend_options is not None:
        log.warning("the backend grpc has no options; it ignores %s", type(backend_options))
    return ProcessGroup(options.store, options.group_rank, options.group_size, options.timeout)


# torch declares overloads; these take what all of them do.
@uncompiled
class ProcessGroup(Reducing, Gathering, Exchanging, dist.ProcessGroup):  # type: ignore[misc]
    """A group of ranks, each with a seat in a job of its own. Takes the seat at once.

    All ranks must call the same collectives in the same order, from one thread at a time; they
    may wait in any order, and from any thread.

    A collective that does not come to its end within the group's timeout fails, and the group
    goes on. One that is given up before, because the call or set_timeout says so, ends the
    group on this rank, as with gloo and nccl: the others may still complete it.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        # With a store, torch would make an object that knows of no methods in Python.
        dist.ProcessGroup.__init__(self, rank, size)  # type: ignore[call-arg]
        self._store = store
        seconds = timeout.total_seconds()
        # First, since it may raise: a seat would be kept.
        routes = Routes(self, store, timeout)
        session = connect(
            store=_this_life(store, rank),
            rank=rank,
            world_size=size,
            timeout=seconds,
            connect_timeout=max(seconds, LEAST_CONNECT_SECONDS),
        )
        Group.__init__(self, session, seconds, routes)
        self._name = self._desc = ""

    # -- what it is called

    def getBackendName(self) -> str:  # noqa: N802 - c10d's
        """The name of the backend."""
        return NAME

    _get_backend_name = name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802 - c10d's
        """The name that torch gave this group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - c10d's
        """Torch gives this group its name."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802 - c10d's
        """What the user says that this group is for."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802 - c10d's
        """The user says what this group is for."""
        self._desc = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Store:
        """The store in which the ranks of this group have met."""
        return self._store

    @property
    def daemon_path(self) -> str:
        """How tensors reach the daemon: "shared_memory" or "stream"."""
        return self._session.path

    # -- devices and other backends

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in self._routes.names()]

    def _get_backend(self, device: torch.device) -> Backend:
        return self._routes.backend(device)

    # -- life

    def set_timeout(self, timeout: timedelta) -> None:
        """What later collectives may take, at most what the group was made with.

        One that takes longer than a shortened timeout ends the group on this rank.

        Raises ValueError for more: the daemons were told that time.
        """
        seconds = timeout.total_seconds()
        if not 0 < seconds <= self._session_seconds:
            raise ValueError(
                f"expected a timeout above 0 and at most {self._session_seconds:g} s, with"
                f" which the group was made, got {seconds:g} s; make it with a longer one"
            )
        self._seconds = seconds

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Give up the seat; what has no result fails on this rank. May be repeated."""
        self._routes.close()
        self._end()

    abort = shutdown

    def split_group(self, *_: object, **__: object) -> dist.ProcessGroup:
        """Raise NotImplementedError: new_group makes a group of some ranks."""
        raise NotImplementedError("split_group: the backend grpc makes groups with new_group")

    def merge_remote_group(self, *_: object, **__: object) -> dist.ProcessGroup:
        """Raise NotImplementedError."""
        raise NotImplementedError("merge_remote_group: the backend grpc does not have it")

    # -- what torch asks of every group

    def _start_coalescing(self, _: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _: torch.device) -> Work | Works:
        works, self._coalesced = self._coalesced or [], None
        return Works(works)

    def _set_sequence_number_for_group(self) -> None:
        """The session numbers its collectives by itself."""

    def _get_sequence_number_for_group(self) -> int:
        return self._session.stats.rounds

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """There are no hooks that could be pending."""

    def _enable_collectives_timing(self) -> None:
        """Times are in the daemon's metrics."""


def _this_life(store: Store, rank: int) -> Store:
    """The store, under a prefix of its own each time that a group is made of the same names."""
    return dist.PrefixStore(f"life{store.add(f'lives/{rank}', 1)}", store)
