"""What all collectives of a process group share: its session, its timeouts, its routes."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import torch

from gradwire._deadlines import Deadlines
from gradwire._work import Patience, Task, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradwire._routes import Routes
    from gradwire._session import Session

Method = TypeVar("Method", bound="Callable[..., Any]")

Tensors: TypeAlias = "torch.Tensor | list[torch.Tensor]"
"""Where c10d hands over a list of one, and people the tensor itself."""

Lists: TypeAlias = "list[torch.Tensor] | list[list[torch.Tensor]]"
"""Where c10d hands over a list of one list, and people the list itself."""

DAEMON_GRACE_SECONDS = 10.0
"""The daemon, whose errors name who is missing, goes first; it answers within this time."""


class Group:
    """One rank's end of a process group; its collectives are in the classes below it."""

    def __init__(self, session: Session, seconds: float, routes: Routes) -> None:
        self._session = session
        self._routes = routes
        self._seconds = seconds
        self._session_seconds = seconds
        self._deadlines = Deadlines()
        self._coalesced: list[Work] | None = None

    def _begin(self, task: Task, wishes_seconds: float | None) -> Work:
        """The work object of a collective that the session was told of."""
        work = Work(task, self._patience(wishes_seconds, timed=task.timed))
        if self._coalesced is not None:
            # An exception in the block leaves it open. What comes after is waited for as ever,
            # and must not stay here.
            self._coalesced = [each for each in self._coalesced if not each.claimed]
            self._coalesced.append(work)
        return work

    def _wait_for(self, task: Task, own: float | None) -> None:
        """Wait for a part of a call, no longer than the call may take."""
        Work(task, self._patience(own, timed=task.timed)).wait()

    def _limit(self, own: float | None) -> tuple[float, str]:
        """How many seconds a call may take, and whose timeout that is: "call" or "group"."""
        if own is None:
            return self._seconds, "group"
        # The daemons were told the group's.
        return (
            (own, "call") if own <= self._session_seconds else (self._session_seconds, "group")
        )

    def _patience(self, own: float | None, *, timed: bool) -> Patience:
        seconds, whose = self._limit(own)
        # Somebody else goes first, who knows more.
        second = timed or seconds >= self._session_seconds
        deadline = time.monotonic() + seconds + (DAEMON_GRACE_SECONDS if second else 0.0)
        return Patience(
            seconds=seconds,
            whose=whose,
            deadline=math.inf if seconds == math.inf else deadline,
            watch=None if second else self._deadlines,
            hurry=self._session.hurry,
            give_up=self._session.give_up,
        )

    def _end(self) -> None:
        self._deadlines.clear()
        self._session.close()


def routed(method: Method, alias: str = "") -> Method:
    """A collective whose tensors may belong to another backend of the group: it gets them."""
    name = alias or method.__name__

    @functools.wraps(method)
    def call(self: Group, *args: object, **keywords: object) -> object:
        device = first_device(args)
        other = None if device is None else self._routes.other(device)
        if other is not None:
            return getattr(other, name)(*args, **keywords)
        return method(self, *args, **keywords)

    return cast("Method", call)


def known_as(alias: str, method: Method) -> Method:
    """The same collective under the name that older versions of torch have for it."""
    wrapped: Method = method.__wrapped__  # type: ignore[attr-defined]  # by wraps()
    return routed(wrapped, alias)


def first_device(values: Iterable[object]) -> torch.device | None:
    """Device of the first tensor in lists of tensors, or of lists of them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, (list, tuple)):
            found = first_device(value)
            if found is not None:
                return found
    return None


def one(tensors: Tensors, what: str) -> torch.Tensor:
    """The only tensor of a list, or the tensor itself. Raises ValueError for more or none."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{what}: expected one tensor, got {len(tensors)}")
    return tensors[0]


def one_list(lists: Lists, what: str) -> list[torch.Tensor]:
    """The only list of a list of lists, or the list itself."""
    if lists and isinstance(lists[0], torch.Tensor):
        return lists
    if len(lists) != 1:
        raise ValueError(f"{what}: expected one list of tensors, got {len(lists)}")
    return list(lists[0])
