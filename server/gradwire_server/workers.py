"""Further processes of one daemon, each with a share of the tensors and links of its own.

One event loop fills about a gigabyte a second. A worker is a whole daemon, forked before
anything runs: it has a socket, ports and arenas of its own, and whoever connects to it sees
nothing else. The first process tells the ranks of the others, and they spread their tensors
(gradwire._ways). So the workers share nothing, and none waits for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gradwire_proto.addresses import join_address, split_address, split_advertised, split_list
from gradwire_server.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradwire_server.settings import Settings

log = logging.getLogger(__name__)

START_SECONDS = 30.0
STOP_SECONDS = 10.0

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Where a worker is found."""

    socket: str
    addresses: list[str]
    metrics: str


class Fleet:
    """The workers beside this process; none, where it is one itself or works alone."""

    def __init__(self, tell: int = -1) -> None:
        self.broken = False
        """A worker has ended by itself."""
        self._tell = tell
        self._pids: list[int] = []
        self._pipes: list[int] = []
        self._ends: list[int] = []

    def add(self, pid: int, pipe: int) -> None:
        """A worker has been forked."""
        self._pids.append(pid)
        self._pipes.append(pipe)
        self._ends.append(os.pidfd_open(pid))

    def report(self, report: Report) -> None:
        """In a worker: it serves."""
        if self._tell >= 0:
            os.write(self._tell, json.dumps(asdict(report)).encode() + b"\n")
            os.close(self._tell)
            self._tell = -1

    def await_reports(self) -> list[Report]:
        """Where the workers are, once they serve. Raises StartError where one does not."""
        deadline = time.monotonic() + START_SECONDS
        return [
            self._await_report(number, pipe, deadline)
            for number, pipe in enumerate(self._pipes, start=1)
        ]

    def _await_report(self, number: int, pipe: int, deadline: float) -> Report:
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise StartError(f"worker {number} did not start within {START_SECONDS:g} s")
            if not (data := os.read(pipe, 64 * 1024)):
                raise StartError(f"worker {number} could not start; it says why above")
            line += data
        return Report(**json.loads(line))

    def watch(self, lost: Callable[[], None]) -> None:
        """Have `lost` called on the event loop where a worker ends."""
        loop = asyncio.get_running_loop()

        def ended(number: int, end: int) -> None:
            loop.remove_reader(end)
            log.error("worker %d (pid %d) is gone", number, self._pids[number - 1])
            self.broken = True
            lost()

        for number, end in enumerate(self._ends, start=1):
            loop.add_reader(end, ended, number, end)

    def unwatch(self) -> None:
        """Whatever ends from now on was meant to: signals may reach all processes at once."""
        for end in self._ends:
            asyncio.get_running_loop().remove_reader(end)

    def stop(self) -> None:
        """End the workers, in good order where they still can."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for pid, end, pipe in zip(self._pids, self._ends, self._pipes, strict=True):
            if not select.select([end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(end)
            os.close(pipe)
        self._pids, self._ends, self._pipes = [], [], []


@contextlib.contextmanager
def forked(settings: Settings) -> Iterator[tuple[Settings, Fleet]]:
    """Goes on in every process, each with its own settings.

    Before any thread and any event loop. When the block ends, the first process ends its
    workers.
    """
    fleet, parent = Fleet(), os.getpid()
    try:
        for number in range(1, settings.workers):
            if (tell := _fork(fleet, number)) >= 0:
                _die_with(parent)
                yield settings_of(settings, number), Fleet(tell)
                return
        yield settings, fleet
    finally:
        if os.getpid() == parent:
            fleet.stop()


def _fork(fleet: Fleet, number: int) -> int:
    """In the worker, where it is to say that it serves; negative in the first process."""
    pipe, tell = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(pipe)
        os.close(tell)
        raise StartError(f"can't start worker {number}: {error.strerror}") from error
    if pid == 0:
        os.close(pipe)
        return tell
    os.close(tell)
    fleet.add(pid, pipe)
    return -1


def settings_of(settings: Settings, number: int) -> Settings:
    """A worker's settings: sockets and ports beside those of the first process."""
    listen = [split_address(each) for each in split_list(settings.listen)]
    told = split_list(settings.advertise) if settings.advertise else []
    advertise = [split_advertised(each) for each in told]
    return settings.model_copy(
        update={
            "workers": 1,
            "embedded": False,
            "socket": settings.socket.with_name(f"{settings.socket.name}.{number}"),
            "listen": ",".join(_beside(host, port, number) for host, port in listen),
            "advertise": ",".join(_beside(host, port, number) for host, port in advertise),
            "trace": settings.trace
            and settings.trace.with_name(f"{settings.trace.name}.{number}"),
            "metrics_listen": "127.0.0.1:0" if settings.metrics_listen else "",
        }
    )


def _beside(host: str, port: int | None, number: int) -> str:
    """The same place, so many ports on; any port stays any port, and none stays none."""
    if port is None:
        return host
    return join_address(host, port + number if port else 0)


def _die_with(parent: int) -> None:
    """Have the kernel stop this process when its parent ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
