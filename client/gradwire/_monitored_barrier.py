"""A barrier that names who is missing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradwire._errors import RoundTimeoutError

if TYPE_CHECKING:
    from datetime import timedelta

    from gradwire._session import Session

FOLLOW_SECONDS = 1.0
"""The others wait so much longer than rank 0, whose error tells more than theirs would."""


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    *,
    wait_all_ranks: bool = False,
) -> None:
    """torch.distributed.monitored_barrier, which torch has for gloo only, for "grpc".

    Returns when every rank has called it. Rank 0's error names the first rank that is missing,
    or, with wait_all_ranks, all of them. `timeout` is the group's if it is not given.

    Raises RoundTimeoutError; LostError where a rank has left, or the group is over; and
    TypeError for a group of another backend.
    """
    chosen: Any = dist.group.WORLD if group is None else group
    if chosen is dist.GroupMember.NON_GROUP_MEMBER:
        return
    if chosen is None or chosen.name() != "grpc":
        raise TypeError(f"expected a group of the backend grpc, got {chosen and chosen.name()}")
    chosen.monitored_barrier(timeout, wait_all_ranks)


class Barrier:
    """One such barrier, of one session."""

    def __init__(self, session: Session, tag: int, seconds: float) -> None:
        self._session = session
        self._tag = tag
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def pass_through(self, *, name_all: bool) -> None:
        """Return when all ranks are there. Raises RoundTimeoutError or LostError."""
        if self._session.rank == 0:
            self._lead(name_all=name_all)
        else:
            self._follow()

    def _lead(self, *, name_all: bool) -> None:
        ranks = range(1, self._session.world_size)
        if self._seconds <= 0 and ranks:
            raise RoundTimeoutError(
                "Rank 0 timed out in monitoredBarrier after 0 ms. No ranks successfully"
                " processed in monitoredBarrier."
            )
        calls = {
            rank: self._session.receive(
                torch.zeros(1, dtype=torch.uint8), rank, self._tag, self._seconds
            )
            for rank in ranks
        }
        missing: list[str] = []
        for rank, call in calls.items():
            try:
                call.wait()
            except RoundTimeoutError as error:
                missing.append(str(rank))
                if not name_all:
                    raise self._failed(missing) from error
        if missing:
            raise self._failed(missing)
        for answer in [self._send(rank) for rank in ranks]:
            answer.wait()

    def _failed(self, missing: list[str]) -> RoundTimeoutError:
        who = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(missing)}"
        return RoundTimeoutError(
            f"{who} failed to pass monitoredBarrier in {1000 * self._seconds:.0f} ms"
        )

    def _follow(self) -> None:
        answer = self._session.receive(
            torch.zeros(1, dtype=torch.uint8), 0, self._tag, self._seconds + FOLLOW_SECONDS
        )
        try:
            self._send(0).wait()
            answer.wait()
        except RoundTimeoutError as error:
            raise RoundTimeoutError(
                f"Rank {self._session.rank} successfully reached monitoredBarrier, but received"
                " errors while waiting for send/recv from rank 0. Please check rank 0 logs for"
                " faulty rank."
            ) from error

    def _send(self, to: int) -> torch.futures.Future[None]:
        token = torch.zeros(1, dtype=torch.uint8)
        seconds = self._seconds + FOLLOW_SECONDS
        return self._session.send(token, to, self._tag, seconds)
