"""One collective of a process group, as torch waits for it."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradwire._errors import RoundTimeoutError
from gradwire._result import Result
from gradwire._uncompiled import uncompiled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradwire._deadlines import Deadlines

NO_TIMEOUT = timedelta(0)
"""How c10d says that `wait` has no timeout of its own."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be waited for, and what is to be done then."""

    name: str
    """For errors."""
    parts: Sequence[torch.futures.Future[Any]]
    outputs: Sequence[torch.Tensor] = ()
    """What the caller gets."""
    finish: Callable[[], None] | None = None
    """Brings the results to where the caller looks for them. Must be short, and not wait."""
    timed: bool = False
    """The parts keep the call's timeout by themselves, as letters do."""
    received: bool = False
    """The only part holds the rank that sent it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a collective may take."""

    seconds: float
    whose: str
    """"call" or "group"."""
    deadline: float
    """Of time.monotonic(); later than the daemon's own, which knows better who is missing."""
    watch: Deadlines | None
    """Who ends it at its deadline; None where the daemon does."""
    hurry: Callable[[], None]
    """Have the session's thread do the work at once."""
    give_up: Callable[[str], None]
    """End the session, for this reason: nothing is written to any tensor after that."""


@uncompiled
class Work(dist.Work):
    """See torch.distributed.Work. All methods may be called from any thread."""

    def __init__(self, task: Task, patience: Patience) -> None:
        super().__init__()
        self._name = task.name
        self._parts = task.parts
        self._outputs = task.outputs
        self._finish = task.finish
        self._timed, self._received = task.timed, task.received
        self._patience = patience
        self._lock = threading.Lock()
        self._left = len(task.parts)
        self._ended = False
        self._settled = threading.Event()
        self._error: Exception | None = None
        self._future: Result[Any] | None = None
        self.claimed = False
        """Somebody has waited for it, or holds its future."""
        for part in task.parts:
            if isinstance(part, Result):
                part.observe(self._arrived)
            else:
                part.add_done_callback(self._arrived)
        if not task.parts:
            self._end(None)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """True, once the result is there. The caller itself does the session's work meanwhile.

        Raises the collective's error, or RoundTimeoutError after this timeout, if one is given,
        or the collective's, whichever comes first.
        """
        self.claimed = True
        deadline = self._patience.deadline
        if timeout > NO_TIMEOUT:
            deadline = min(deadline, time.monotonic() + timeout.total_seconds())
        self._work_until(deadline)
        if not self._settled.is_set():
            if deadline == self._patience.deadline:
                self.expire()
                # Or it has ended a moment ago, and is being finished.
                self._settled.wait()
            else:
                raise RoundTimeoutError(
                    f"{self._name}: waited {timeout.total_seconds():g} s, the timeout of"
                    " this wait(); it goes on"
                )
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as wait: copies to a device have been made when a collective ends."""
        self.wait()

    def expire(self) -> None:
        """The deadline has passed: fail, if there is no result yet.

        That ends the group on this rank: the others might complete the collective, and it would
        be written to a tensor that is the caller's again.
        """
        if not self._claim_end():
            return
        patience = self._patience
        text = (
            f"{self._name}: no result within {patience.seconds:g} s, the timeout of this"
            f" {patience.whose}; a rank did not come to it, or is late"
        )
        try:
            patience.give_up(f"this group is over; {text}")
        finally:
            self._conclude(RoundTimeoutError(f"{text}. With this the group is over"))

    def is_completed(self) -> bool:
        """Whether there is a result, or an error."""
        if not self._settled.is_set():
            self._patience.hurry()
        return self._settled.is_set()

    def is_success(self) -> bool:
        """Whether there is a result."""
        return self._settled.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """The error, if there is one by now."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The caller's tensors."""
        return list(self._outputs)

    def source_rank(self) -> int:
        """Who sent what was received. Raises RuntimeError for what is no recv, or not done."""
        if not self._received:
            raise RuntimeError(f"only a recv has a source_rank, and this is {self._name}")
        return int(self._parts[0].value())

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """A future with the list of the caller's tensors.

        What is chained to it runs on a thread of its own, and may wait for other collectives.
        """
        self.claimed = True
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = Result(self._work_for, self._devices())
            ended = self._settled.is_set()
        if ended:
            self._settle(future)
        else:
            # It is mostly C++ code that waits for it, and does no work meanwhile.
            self._patience.hurry()
            if self._patience.watch is not None:
                self._patience.watch.add(self._patience.deadline, self)
        return future

    def _devices(self) -> list[torch.device]:
        devices = {each.device for each in self._outputs if each.device.type != "cpu"}
        return sorted(devices, key=str)

    def _work_for(self, _: Result[Any], deadline: float) -> None:
        self._work_until(min(deadline, self._patience.deadline))
        if time.monotonic() >= self._patience.deadline:
            self.expire()

    def _work_until(self, deadline: float) -> None:
        for part in self._parts:
            if isinstance(part, Result) and not self._settled.is_set():
                part.wait_until(deadline)
        left = deadline - time.monotonic()
        self._settled.wait(None if left == math.inf else max(0.0, left))

    def _arrived(self, part: torch.futures.Future[Any]) -> None:
        error = _error_of(part)
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if error is not None or last:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._claim_end():
            return
        if error is None and self._finish is not None:
            try:
                self._finish()
            except Exception as unfinished:  # noqa: BLE001 - who waits must hear it
                error = unfinished
        if self._timed and isinstance(error, RoundTimeoutError):
            patience = self._patience
            error = RoundTimeoutError(
                f"{self._name}: {error}; {patience.seconds:g} s is the timeout of this"
                f" {patience.whose}"
            )
        self._conclude(error)

    def _claim_end(self) -> bool:
        """Whether it falls to the caller to end it."""
        with self._lock:
            ended, self._ended = self._ended, True
            return not ended

    def _conclude(self, error: Exception | None) -> None:
        # It may hold tensors of its own, and of the user's.
        self._finish = None
        with self._lock:
            self._error = error
            self._settled.set()
            future = self._future
        if future is not None:
            self._settle(future)

    def _settle(self, future: Result[Any]) -> None:
        error, outputs = self._error, list(self._outputs)
        future.settle(error if error is not None else lambda: outputs)


@uncompiled
class Works(dist.Work):
    """Several collectives, waited for as one."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """See Work.wait; the timeout is for each."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all have a result, or an error."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have a result."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """The first error, if there is one by now."""
        return next(filter(None, (work.exception() for work in self._works)), None)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future with the list of all tensors."""
        every = torch.futures.collect_all([work.get_future() for work in self._works])
        return every.then(lambda done: [each for one in done.value() for each in one.value()])


def _error_of(part: torch.futures.Future[Any]) -> Exception | None:
    try:
        part.value()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this collective's
        return error
    return None
