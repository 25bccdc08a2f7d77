"""Child processes: their output, their failures, and their end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradwire_ops.place import HERE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    from gradwire_ops.place import Place

POLL_SECONDS = 0.05
STOP_SECONDS = 10.0
LAST_WORDS_LINES = 25


class ChildError(Exception):
    """A child process failed; the text says which, how, and what it said last."""


class Child:
    """A Python module running as a program of its own, in a process group of its own.

    Its own group, because Ctrl-C is for us: we stop the children in order. What it writes to
    standard error, and to standard output unless that is `piped`, goes to the file `log`. It
    dies with this process, even where that is killed (see leash).
    """

    def __init__(  # noqa: PLR0913 - what runs, where, and where its words go
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        piped: bool = False,
        place: Place = HERE,
    ) -> None:
        self.name = name
        self._log = log
        self._unfinished = b""
        tied = ("-P", "-m", "gradwire_ops.leash", str(os.getpid()))
        with log.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                [*place.prefix, sys.executable, *tied, *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def fileno(self) -> int:
        """The reading end of its standard output; only where it is piped."""
        if self._process.stdout is None:
            raise ValueError(f"{self.name} writes to {self._log}, not into a pipe")
        return self._process.stdout.fileno()

    def read_lines(self) -> list[str] | None:
        """The whole lines that have come since; None once there will be no more."""
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within this time."""
        try:
            self._process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Give back its pipe; only once it has ended."""
        if self._process.stdout is not None:
            self._process.stdout.close()

    def failure(self) -> ChildError:
        """Says how it ended and what it wrote last."""
        ending = _describe_exit(self.exit_code)
        return ChildError(f"{self.name} {ending}; {self.last_words(LAST_WORDS_LINES)}")

    def last_words(self, lines: int) -> str:
        """The end of its log, in words for people."""
        words = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "it said last:" + ("".join(f"\n  {line}" for line in words) or " nothing")


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "did not end in time"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def read_all(
    readers: Sequence[Child], watched: Sequence[Child], timeout_seconds: float
) -> Iterator[tuple[Child, str]]:
    """Each line the readers print, as it comes, until all of them have ended well.

    Raises ChildError as soon as a reader has failed, or one of `watched` has ended at all, or
    the time is up. The watched are looked at first: a rank often fails because its daemon did.
    """
    deadline = time.monotonic() + timeout_seconds
    with selectors.DefaultSelector() as selector:
        for child in readers:
            selector.register(child, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select(POLL_SECONDS):
                lines = key.data.read_lines()
                if lines is None:
                    selector.unregister(key.fileobj)
                for line in lines or ():
                    yield key.data, line
            _check(readers, watched, deadline)
    for child in readers:
        if not child.wait(deadline - time.monotonic()) or child.exit_code:
            raise child.failure()


def _check(readers: Iterable[Child], watched: Iterable[Child], deadline: float) -> None:
    for child in watched:
        if child.exit_code is not None:
            raise child.failure()
    for child in readers:
        if child.exit_code:
            raise child.failure()
    if time.monotonic() > deadline:
        running = ", ".join(child.name for child in readers if child.exit_code is None)
        raise ChildError(f"time is up, and these still run: {running or 'none'}")


def stop(children: Iterable[Child], seconds: float = STOP_SECONDS) -> list[str]:
    """End all of them, with SIGTERM and then SIGKILL. Returns the names of those killed."""
    running = [child for child in children if child.exit_code is None]
    for child in running:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + seconds
    stubborn = [child for child in running if not child.wait(deadline - time.monotonic())]
    for child in stubborn:
        child.signal(signal.SIGKILL)
        child.wait(seconds)
    for child in children:
        child.close()
    return [child.name for child in stubborn]


@contextmanager
def exit_on_terminate() -> Iterator[None]:
    """SIGTERM ends this process like Ctrl-C does: through every `finally`."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
