"""The ways a session's tensors go: one to each worker of the daemon, and others for what is
urgent.

Every way is a pipeline to a seat of its own, in a generation of its own: what goes one way
never waits for what goes another. A large tensor is cut into as many parts as there are
workers; small ones take turns.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gradwire._collective import SessionStats
from gradwire._errors import AggregationError, LostError, NonFiniteError
from gradwire._result import Result
from gradwire._tensor import unflatten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from gradwire._checkpoint import Residual
    from gradwire._mail import Mail
    from gradwire._order import Order
    from gradwire._pipeline import Pipeline

LEAST_PART_BYTES = 1 << 20
"""A tensor is cut where each worker gets so much of it."""

ALIGNMENT = 16
"""Parts begin at multiples of so many elements."""


class Vault(Protocol):
    """Where a daemon keeps what lossy wires lose."""

    def read(self, revoked: Iterable[int]) -> list[Residual]:
        """All of it, these identities' as before they were reduced last. Raises LostError."""
        ...

    def write(self, residuals: list[Residual]) -> int:
        """Have it go on with these; how many it can't. Raises LostError."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """A pipeline, and how to give up its seat."""

    pipeline: Pipeline
    mail: Mail
    leave: Callable[[], None]
    path: str
    """How tensors travel: "shared_memory" or "stream"."""
    vault: Vault


class Ways:
    """All of a session's ways. Methods may be called from any thread."""

    def __init__(self, workers: int, join: Callable[[int, bool], Way]) -> None:
        """`join` takes a seat at a worker, for what is urgent or not; it may raise.

        Raises what it raises; then no seat is kept.
        """
        self._workers = workers
        self._join = join
        self._ways: dict[bool, list[Way]] = {}
        self._turns = {False: 0, True: 0}
        self._lock = threading.Lock()
        self._joining = threading.Lock()
        self.over: AggregationError | None = None
        self._open(urgent=False)

    @property
    def path(self) -> str:
        """How tensors travel."""
        return self._ways[False][0].path

    @property
    def mail(self) -> Mail:
        """For messages from rank to rank, which all go through the first worker."""
        return self._ways[False][0].mail

    @property
    def stats(self) -> SessionStats:
        """Counts since the beginning, over all ways."""
        each = [way.pipeline.stats for way in self._all()]
        return SessionStats(
            sum(one.rounds for one in each),
            sum(one.bytes_in for one in each),
            sum(one.seconds_waiting for one in each),
        )

    def submit(self, order: Order, *, urgent: bool) -> Result[torch.Tensor]:
        """Send a tensor on its way. Raises LostError where the session is over."""
        ways = self._ways.get(urgent) or self._open(urgent=urgent)
        if len(ways) == 1:
            return ways[0].pipeline.submit(order)
        with self._lock:
            # As one step: the ways must see all tensors in the same order on every rank.
            turn, self._turns[urgent] = self._turns[urgent], self._turns[urgent] + 1
            ranges = cut(order.flat.numel(), order.flat.itemsize, len(ways))
            if len(ranges) == 1:
                # What is lost of it is kept where it goes: what has a name goes one way always.
                turn = order.described.spec.identity or turn
                return ways[turn % len(ways)].pipeline.submit(order)
            return _spread(order, ways, ranges)

    @property
    def idle(self) -> bool:
        """No collective is without a result."""
        return all(way.pipeline.idle for way in self._all())

    def vaults(self, *, urgent: bool = False) -> list[Vault]:
        """Of the ways that are not urgent, worker by worker; then of the urgent ones, which
        there will be after this if `urgent`.
        """
        if urgent:
            self._open(urgent=True)
        return [way.vault for way in self._all()]

    def check_process(self) -> None:
        """See Pipeline.check_process."""
        self._ways[False][0].pipeline.check_process()

    def call_movers(self) -> None:
        """Somebody waits who does not work meanwhile."""
        for way in self._all():
            way.pipeline.call_mover()

    def end(self, error: AggregationError) -> None:
        """Leave the job; what has no result fails with this error."""
        with self._lock:
            if self.over is None:
                self.over = error
        for way in self._all():
            way.pipeline.end(error, way.leave)

    def _open(self, *, urgent: bool) -> list[Way]:
        with self._joining:
            if urgent in self._ways:
                return self._ways[urgent]
            if self.over is not None:
                raise type(self.over)(str(self.over))
            opened: list[Way] = []
            try:
                for worker in range(self._workers):
                    way = self._join(worker, urgent)
                    opened.append(way)
                    way.mail.attend(way.pipeline.end)
                    way.pipeline.attend(partial(_end_mail, way.mail))
                    way.pipeline.attend(self._ended)
                with self._lock:
                    if self.over is not None:
                        # While the seats were taken. Raised anew: each has its own way up.
                        raise type(self.over)(str(self.over))
                    self._ways[urgent] = opened
            except BaseException:
                error = LostError("the session did not get all its seats")
                for way in opened:
                    way.pipeline.end(error, way.leave)
                raise
            return opened

    def _ended(self, error: AggregationError, leaving: bool) -> None:
        """Where one way is lost, so are the others: they have the rest of its tensors."""
        if leaving:
            return
        with self._lock:
            if self.over is not None:
                return
            self.over = error
        for way in self._all():
            way.pipeline.end(error)

    def _all(self) -> list[Way]:
        return [way for ways in tuple(self._ways.values()) for way in ways]


def _end_mail(mail: Mail, error: AggregationError, leaving: bool) -> None:
    mail.end(error, flush=leaving)


def cut(elements: int, itemsize: int, ways: int) -> list[tuple[int, int]]:
    """Elements [start, stop) of a tensor's parts, nearly equal, and no more than ways."""
    count = max(1, min(ways, elements * itemsize // LEAST_PART_BYTES))
    step = max(1, -(-elements // (count * ALIGNMENT))) * ALIGNMENT
    starts = range(0, elements, step) if elements else (0,)
    return [(start, min(start + step, elements)) for start in starts]


def _spread(
    order: Order, ways: Sequence[Way], ranges: Sequence[tuple[int, int]]
) -> Result[torch.Tensor]:
    """Each part goes its own way; one result for all of them."""
    whole = _Whole(order, len(ranges))
    parts: list[tuple[Pipeline, _Part]] = []
    result: Result[torch.Tensor] = Result(lambda _, deadline: _work(parts, deadline))
    whole.result = result
    for way, (start, stop) in zip(ways, ranges, strict=False):
        part = _Part(whole, len(parts))
        way.pipeline.bring(order.part(start, stop), part)
        if parts:
            # Whoever waits works for one way after the other.
            way.pipeline.call_mover()
        parts.append((way.pipeline, part))
    return result


def _work(parts: Iterable[tuple[Pipeline, _Part]], deadline: float) -> None:
    for pipeline, part in parts:
        pipeline.work_until(part, deadline)


class _Whole:
    """Settles one result when all parts have settled; before that, some may be written yet."""

    result: Result[torch.Tensor] | None

    def __init__(self, order: Order, parts: int) -> None:
        self._order = order
        self._open = parts
        self._lock = threading.Lock()
        self._errors: dict[tuple[float, int], Exception] = {}

    def settled(self, number: int, error: Exception | None) -> None:
        """One part more has. Of several errors, all ranks choose the same."""
        with self._lock:
            if error is not None:
                self._errors[_severity(error), number] = error
            self._open -= 1
            if self._open:
                return
        result, order = self.result, self._order
        assert result is not None, "it is set before the first part is brought"  # noqa: S101
        # It holds the parts, and they hold this: the tensor would stay until Python looks.
        self.result = None
        if self._errors:
            result.settle(self._errors[min(self._errors)])
        else:
            result.settle(lambda: unflatten(order.flat, order.tensor))


def _severity(error: Exception) -> float:
    """The least is told: of results that are not finite, the one with the lowest rank."""
    if isinstance(error, NonFiniteError):
        return math.inf if error.rank is None else error.rank
    return -1


class _Part:
    """See _pipeline.Outcome."""

    def __init__(self, whole: _Whole, number: int) -> None:
        self._whole = whole
        self._number = number
        self._done = False

    def done(self) -> bool:
        """See Outcome."""
        return self._done

    def settle(self, outcome: Callable[[], torch.Tensor] | Exception) -> None:
        """See Outcome."""
        self._done = True
        error = outcome if isinstance(outcome, Exception) else _raised(outcome)
        self._whole.settled(self._number, error)


def _raised(outcome: Callable[[], torch.Tensor]) -> Exception | None:
    try:
        outcome()
    except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear it
        return error
    return None
