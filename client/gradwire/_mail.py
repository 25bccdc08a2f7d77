"""A rank's letters on their way: outbox and inbox, the line to the daemon, and the futures."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gradwire._errors import AggregationError, LostError
from gradwire._inbox import Inbox
from gradwire._letters import Ended, Receiving, Sending
from gradwire._outbox import Outbox
from gradwire._result import Result
from gradwire._threads import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradwire._letters import Effect
    from gradwire_proto.v1 import aggregator_pb2 as pb

LOOK_SECONDS = 1.0
"""How often somebody looks for what is late, where nothing is sooner."""

FLUSH_SECONDS = 2.0
"""How long a session that is closed waits for its last receipts to go out."""


class PostLine(Protocol):
    """Carries notes both ways, in order."""

    def send(self, note: pb.Note, payload: memoryview) -> None:
        """Hand a note over. Does not wait, and needs the payload no longer."""
        ...

    def receive(self) -> tuple[pb.Note, memoryview]:
        """Wait for the next note. Raises LostError where the line breaks or ends."""
        ...

    def finish(self) -> None:
        """Nothing more is sent; the daemon ends the line once it has read what was."""
        ...

    def close(self) -> None:
        """End the line at once; `receive`, in whatever thread, raises."""
        ...


def _never() -> bool:
    """A line that breaks is the end."""
    return False


class Mail:
    """One rank's letters. All methods may be called from any thread.

    The line, and two threads, begin with the first letter.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        page_bytes: int,
        open_line: Callable[[], PostLine],
        *,
        resumes: Callable[[], bool] = _never,
    ) -> None:
        """`resumes`: whether there will be another line, where this one breaks."""
        self._rank = rank
        self._open_line = open_line
        self._resumes = resumes
        self._world_size = world_size
        self._page_bytes = page_bytes
        self._begin()
        # Also while a tensor is read or written: nothing may be resolved meanwhile.
        self._lock = threading.Lock()
        self._results: dict[Sending | Receiving, Result[Any]] = {}
        self._over: AggregationError | None = None
        self._line: PostLine | None = None
        self._broken: Callable[[AggregationError], None] = self.end
        self._look = 0.0
        self._hurry = threading.Event()
        self._reader = self._new_reader()
        self._clock = OwnThread(target=self._watch, name="gradwire-late")

    def attend(self, broken: Callable[[AggregationError], None]) -> None:
        """Call this, which calls `end`, where the line breaks."""
        self._broken = broken

    def break_off(self, error: AggregationError) -> None:
        """As where the line breaks."""
        self._broken(error)

    def send(self, data: memoryview, target: int, tag: int, seconds: float) -> Result[None]:
        """A letter; the future is done once it was taken, and raises what went wrong."""
        result: Result[None] = Result(_nothing)
        sending = Sending(target, tag, data, seconds, time.monotonic() + seconds)
        self._submit(sending, result, lambda: self._outbox.send(sending))
        return result

    def receive(
        self, data: memoryview, source: int | None, tag: int, seconds: float
    ) -> Result[int]:
        """A place for a letter; the future holds who sent it, or raises what went wrong."""
        result: Result[int] = Result(_nothing)
        place = Receiving(source, tag, data, seconds, time.monotonic() + seconds)
        self._submit(place, result, lambda: self._inbox.receive(place))
        return result

    def end(self, error: AggregationError, *, flush: bool = False) -> None:
        """Fail what is open, once. With flush, what was said before still goes out."""
        with self._lock:
            if self._over is not None:
                return
            self._over = error
            left: list[Sending | Receiving] = [*self._outbox.end(), *self._inbox.end()]
            ended = [(self._results.pop(each), each) for each in left]
        self._hurry.set()
        for result, what in ended:
            result.settle(type(error)(f"{error}; {_describe(what)} was not completed"))
        if self._line is not None:
            if flush and threading.current_thread() is not self._reader:
                self._line.finish()
                self._reader.join(FLUSH_SECONDS)
            self._line.close()

    def reset(self, error: AggregationError) -> None:
        """The daemon that had the letters is gone: fail those under way. All ranks do, so the
        next ones begin anew everywhere.
        """
        with self._lock:
            if self._over is not None or self._line is None:
                return
            left: list[Sending | Receiving] = [*self._outbox.end(), *self._inbox.end()]
            ended = [(self._results.pop(each), each) for each in left]
            self._begin()
            line, self._line = self._line, None
            self._reader = self._new_reader()
        line.close()
        for result, what in ended:
            result.settle(type(error)(f"{error}; {_describe(what)} was not completed"))

    def _begin(self) -> None:
        self._outbox = Outbox(self._rank, self._page_bytes)
        self._inbox = Inbox(self._rank, self._world_size)

    def _new_reader(self) -> threading.Thread:
        return OwnThread(target=self._read, name="gradwire-mail")

    def _submit(
        self,
        what: Sending | Receiving,
        result: Result[Any],
        begin: Callable[[], Iterable[Effect]],
    ) -> None:
        with self._lock:
            over = self._over
            if over is None:
                self._ensure_line()
                self._results[what] = result
                ended = self._carry_out(begin())
                hurry = what.deadline < self._look
        if over is not None:
            result.settle(type(over)(str(over)))
            return
        if hurry:
            self._hurry.set()
        _settle(ended)

    def _ensure_line(self) -> None:
        if self._line is None:
            self._line = self._open_line()
            self._reader.start()
            if not self._clock.ident:
                self._clock.start()

    def _carry_out(self, effects: Iterable[Effect]) -> list[tuple[Result[Any], Ended]]:
        """Say what is to be said; returns the futures to resolve once the lock is free."""
        ended: list[tuple[Result[Any], Ended]] = []
        for effect in effects:
            if isinstance(effect, Ended):
                ended.append((self._results.pop(effect.what), effect))
            elif self._line is not None:
                self._line.send(effect.note, effect.payload)
        return ended

    # -- the threads

    def _read(self) -> None:
        line = self._line
        assert line is not None, "the line is there before its reader"  # noqa: S101
        try:
            while True:
                note, payload = line.receive()
                with self._lock:
                    if self._over is not None or self._line is not line:
                        continue
                    ended = self._carry_out(self._hear(note, payload))
                _settle(ended)
        except LostError as error:
            if self._line is not line:
                return
            if self._resumes():
                self.reset(error)
            else:
                self._broken(error)
        except BaseException as error:
            self._broken(LostError(f"what the daemon said can't be taken: {error!r}"))
            raise

    def _hear(self, note: pb.Note, payload: memoryview) -> list[Effect]:
        match note.WhichOneof("kind"):
            case "offer":
                return self._inbox.offer(note, payload)
            case "page":
                return self._inbox.page(note, payload)
            case "receipt":
                return self._outbox.receipt(note.source, note.number, note.receipt.size)
            case "withdrawal":
                return self._inbox.withdrawn(note)
            case "refusal":
                return self._outbox.refused(note.source, note.number, note.refusal.failure)
            case "departure":
                return [
                    *self._outbox.depart(note.source),
                    *self._inbox.depart(note.source),
                ]
            case kind:
                raise LostError(f"expected a note of a letter, got one of kind {kind}")

    def _watch(self) -> None:
        """Give up what is late."""
        while self._over is None:
            now = time.monotonic()
            with self._lock:
                self._hurry.clear()
                effects = [*self._outbox.expire(now), *self._inbox.expire(now)]
                ended = self._carry_out(effects) if self._over is None else []
                sooner = min(self._outbox.deadline, self._inbox.deadline)
                self._look = min(now + LOOK_SECONDS, sooner)
            _settle(ended)
            if self._over is None:
                self._hurry.wait(max(0.0, self._look - time.monotonic()))


def _nothing(_: object, __: float) -> None:
    """Who waits for a letter does no work meanwhile."""


def _settle(ended: Iterable[tuple[Result[Any], Ended]]) -> None:
    for result, effect in ended:
        result.settle(effect.error or partial(_source, effect.what))


def _source(what: Sending | Receiving) -> int | None:
    return what.source if isinstance(what, Receiving) else None


def _describe(what: Sending | Receiving) -> str:
    size = f"{what.data.nbytes} bytes"
    if isinstance(what, Sending):
        return f"the message with tag {what.tag} to rank {what.target} ({size})"
    who = "any rank" if what.source is None else f"rank {what.source}"
    return f"the message with tag {what.tag} from {who} ({size})"
