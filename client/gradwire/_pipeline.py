"""Keeps one rank's collectives moving, and resolves their futures.

How tensors travel is a carrier's matter (_chain.py, _stream.py). Two threads besides the
caller's: the *mover* does the carrier's work, the *listener* hears what the daemon says. Who
waits for a result does the mover's work meanwhile: that spares waking one thread, and then the
other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from gradwire._collective import Collective, SessionStats
from gradwire._errors import AggregationError, LostError
from gradwire._failure import error_of
from gradwire._result import Result
from gradwire._threads import OwnThread
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gradwire._carrier import Carrier, Outcome
    from gradwire._order import Order
    from gradwire_proto.nonfinite import Finding

SILENCE_GRACE_SECONDS = 5.0
"""The daemon itself says who is late; one that is silent for so much longer is stuck."""

WAIT_SECONDS = 0.05
RECENT_SECONDS = 1.0
RECENT_LOOK_SECONDS = 0.005
LOOK_SECONDS = 0.05
"""How often the mover looks whether there is work that nobody does: often after recent work."""

CLOSE_SECONDS = 5.0


Judge: TypeAlias = "Callable[[Order, Finding], None]"


def _pass(_: Order, __: Finding) -> None:
    """It is as it is."""


class Pipeline:
    """One rank's collectives. All methods may be called from any thread."""

    def __init__(
        self,
        carrier: Carrier,
        timeout: float,
        judge: Judge = _pass,
        first_timeout: float = 0.0,
    ) -> None:
        """`judge` is called with what is not finite; what it raises becomes the outcome.

        `first_timeout`: for what is of a training's first step, where that is longer.
        """
        self._rounds = self._bytes = 0
        self._seconds = 0.0
        self.over: AggregationError | None = None
        self._at_end: list[Callable[[AggregationError, bool], None]] = []
        self._process = os.getpid()
        self._carrier = carrier
        self._judge = judge
        self._timeout = timeout
        self._away = False
        """What is handed in is kept until the seat is taken again."""
        self._first_timeout = max(timeout, first_timeout)
        self._lock = threading.RLock()
        self._open: dict[int, Collective] = {}
        self._ahead: dict[int, AggregationError] = {}
        """Failures of collectives that this rank has not come to yet."""
        self._next_sequence = 0
        self._heard = time.monotonic()
        self._said: deque[pb.ReduceResponse] = deque()
        """What the daemon said of collectives that failed."""
        # Held by who does the work. Re-entered where what is chained to a future, run by the
        # thread that completed it, waits for a result itself.
        self._working = threading.RLock()
        self._resting = False
        """Nobody works: the seat is being taken again."""
        self._called = threading.Event()
        for name, work in (("mover", self._move), ("listener", self._listen)):
            OwnThread(target=work, name=f"gradwire-{name}").start()

    @property
    def stats(self) -> SessionStats:
        """Counts since the beginning."""
        with self._lock:
            return SessionStats(self._rounds, self._bytes, self._seconds)

    @property
    def idle(self) -> bool:
        """All collectives have ended."""
        return not self._open

    def submit(self, order: Order) -> Result[torch.Tensor]:
        """Send a tensor on its way. Raises LostError where the pipeline is over."""
        future: Result[torch.Tensor] = Result(self.work_until)
        self.bring(order, future)
        return future

    def bring(self, order: Order, future: Outcome) -> None:
        """See submit; the outcome goes to `future`."""
        with self._lock:
            if self.over is not None:
                raise type(self.over)(str(self.over))
            sequence = self._next_sequence
            self._next_sequence += 1
            if not self._open:
                self._heard = time.monotonic()
            collective = Collective(sequence, order, future)
            self._open[sequence] = collective
            failed = self._ahead.pop(sequence, None)
            if not self._away:
                self._hand_in(collective, failed)
        if failed is not None:
            self._resolve(collective, collective.blame(failed))

    def _hand_in(self, collective: Collective, failed: AggregationError | None) -> None:
        if failed is None:
            self._carrier.put(collective)
        else:
            self._carrier.skip(collective.sequence)

    def check_process(self) -> None:
        """Raise LostError in a process forked from the one that connected."""
        if os.getpid() != self._process:
            raise LostError(
                "this session belongs to the process that connected, not to one forked from it;"
                " connect in each process"
            )

    def attend(self, at_end: Callable[[AggregationError, bool], None]) -> None:
        """Call this at the end, with its reason and whether this rank leaves in good order."""
        with self._lock:
            self._at_end.append(at_end)
            over = self.over
        if over is not None:
            at_end(over, False)

    def call_mover(self) -> None:
        """Somebody waits who does not work meanwhile."""
        self._called.set()

    def end(self, error: AggregationError, leave: Callable[[], None] | None = None) -> None:
        """Fail what has no result, once; leave, if given, says goodbye to the daemon.

        Does nothing in a forked child, whose parent goes on.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self.over is not None:
                return
            self.over = error
            waiting = list(self._open.values())
            told, self._at_end = self._at_end, []
        self._called.set()
        self._carrier.wake()
        for at_end in told:
            at_end(error, leave is not None)
        if leave is not None:
            leave()
        self._carrier.hang_up()
        self._let_go(error, waiting, orphaned=leave is None)

    def _let_go(
        self, error: AggregationError, waiting: list[Collective], *, orphaned: bool
    ) -> None:
        # Whoever is at work leaves off after the piece that he is at.
        mine = self._working.acquire(timeout=CLOSE_SECONDS)
        try:
            while self._said:
                self._failed(self._said.popleft())
            for collective in waiting:
                text = f"{error}; collective {collective.sequence} has no result here"
                self._resolve(collective, collective.blame(type(error)(text)))
            if mine:
                with self._lock:
                    self._carrier.close(orphaned=orphaned)
        finally:
            if mine:
                self._working.release()

    # -- the work

    def _move(self) -> None:
        """Do what nobody else does."""
        while self.over is None:
            if self._busy and self._working.acquire(blocking=False):
                try:
                    while self._busy and self.over is None:
                        if not self._work():
                            self._carrier.wait(WAIT_SECONDS)
                            self._check_silence()
                finally:
                    self._working.release()
            self._check_silence()
            recent = time.monotonic() - self._heard < RECENT_SECONDS
            self._called.wait(RECENT_LOOK_SECONDS if recent else LOOK_SECONDS)
            self._called.clear()

    @property
    def _busy(self) -> bool:
        """There may be work."""
        return bool(self._open or self._said) and not self._resting

    def work_until(self, future: Outcome, deadline: float) -> None:
        """Work until this future has its result, unless somebody does already."""
        self.check_process()
        while (
            not future.done()
            and self.over is None
            and not self._resting
            and time.monotonic() < deadline
            and self._working.acquire(blocking=False)
        ):
            try:
                # Looked at again: who ended it had to be let to work, too.
                if self.over is None and not future.done() and not self._work():
                    self._carrier.wait(WAIT_SECONDS)
            finally:
                self._working.release()

    def _work(self) -> bool:
        """One piece of work; False where there was none."""
        try:
            if self._said:
                self._failed(self._said.popleft())
                return True
            done = self._carrier.advance()
            if done is False:
                return False
            self._heard = time.monotonic()
            if isinstance(done, Collective):
                self._completed(done)
        except LostError as error:
            self.end(error)
        except BaseException as error:
            # A signal's, or a mistake of ours. A chunk may be half added: nobody must wait for
            # the other half.
            self.end(LostError(f"taking a tensor on was interrupted by {error!r}"))
            raise
        return True

    # -- what the daemon says

    def _listen(self) -> None:
        while self.over is None:
            try:
                self._hear()
            except LostError as error:
                self.end(error)
            except BaseException as error:
                self.end(LostError(f"what the daemon said can't be taken: {error!r}"))
                raise

    def _hear(self) -> None:
        """Wait for one word of the daemon. Raises LostError where the job is over."""
        response = self._carrier.receive()
        self._heard = time.monotonic()
        if response is not None:
            self._take_word(response)
        self._wake()

    def _take_word(self, response: pb.ReduceResponse) -> None:
        if response.failure.scope == pb.Failure.SCOPE_JOB:
            raise LostError(response.failure.reason)
        self._said.append(response)

    def _wake(self) -> None:
        with self._lock:
            if self.over is None:
                self._carrier.wake()

    def _failed(self, response: pb.ReduceResponse) -> None:
        failure, sequence = response.failure, response.sequence
        error = error_of(failure)
        with self._lock:
            # As one step: a tensor that is handed in between would be put behind what failed.
            self._carrier.drop(sequence)
            collective = self._open.get(sequence)
            if sequence >= self._next_sequence and self._carrier.told_early:
                self._ahead[sequence] = error
        if collective is not None:
            self._resolve(collective, collective.blame(error))

    def _completed(self, collective: Collective) -> None:
        self._resolve(collective, None)

    def _resolve(self, collective: Collective, error: AggregationError | None) -> None:
        with self._lock:
            if self._open.pop(collective.sequence, None) is None:
                return
            size = collective.size
            self._rounds += 1
            self._bytes += size
            self._seconds += time.monotonic() - collective.since
            self._carrier.resolved(min(self._open, default=self._next_sequence), size)
        collective.future.settle((lambda: self._finish(collective)) if error is None else error)

    def _finish(self, collective: Collective) -> torch.Tensor:
        result = collective.finish()
        if collective.finding is not None:
            self._judge(collective.order, collective.finding)
        return result

    def _check_silence(self) -> None:
        silent = time.monotonic() - self._heard
        if not self._open or self._resting or silent <= self._timeout + SILENCE_GRACE_SECONDS:
            return
        with self._lock:
            first = any(each.order.described.spec.first_step for each in self._open.values())
        patience = self._first_timeout if first else self._timeout
        if silent > patience + SILENCE_GRACE_SECONDS:
            self.end(
                LostError(
                    f"{self._carrier.daemon} has been silent for {silent:.0f} s, though"
                    f" {len(self._open)} collectives wait for it; it is stopped or stuck"
                )
            )
