"""`gradwire drill --daemon`: disturbs a job that runs, and watches it from outside."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import typer
from rich.console import Console

from gradwire_ops import query
from gradwire_ops.drill import show
from gradwire_ops.drill_plan import FAULTS, KILL_DAEMON, KILL_RANK, STOP_DAEMON
from gradwire_ops.drill_verdict import CLEANLY, HUNG, SURVIVED, Finding
from gradwire_proto.text import printable

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb

LIVE_FAULTS = (KILL_RANK, KILL_DAEMON, STOP_DAEMON)
LOOK_SECONDS = 0.05
ANSWER_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")


class RefusedError(Exception):
    """It can't be done to this job; the text says why."""


@dataclass(frozen=True, slots=True)
class LiveFlags:
    """As they were given."""

    fault: str
    daemon: str
    seed: int
    seconds: str
    timeout: float
    sure: bool


@dataclass(frozen=True, slots=True)
class Target:
    """What the fault is done to."""

    pids: tuple[int, ...]
    words: str
    ranks: tuple[int, ...]
    """Process ids of the ranks at this daemon."""
    generation: str


def run(flags: LiveFlags, *, as_json: bool) -> int:
    """Do it and print. 0 where the verdict is the expected one, 1 where not, 2 for usage."""
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        seconds = _mistakes(flags)
        target = find_target(flags, query.status(flags.daemon))
        if not _may(flags, target):
            return 2
        _await_progress(flags.daemon, target.generation)
    except ValueError as error:
        progress.print(str(error), style="red", markup=False)
        return 2
    except (RefusedError, query.UnreachableError) as error:
        progress.print(str(error), style="red", markup=False)
        return 1
    progress.print(f"{target.words} (generation {target.generation[:8]})", markup=False)
    finding = _disturb(flags, target, seconds)
    show(f"Drill of the job at {flags.daemon}", [finding], progress, as_json=as_json)
    return 0 if finding.good else 1


def _mistakes(flags: LiveFlags) -> float:
    """How long a daemon is stopped. Raises ValueError for flags that can't be followed."""
    if flags.fault not in FAULTS:
        raise ValueError(f"{flags.fault}: expected one of {', '.join(LIVE_FAULTS)}")
    if flags.fault not in LIVE_FAULTS:
        raise ValueError(
            f"{flags.fault} can't be done to a job that runs already: it needs a relay or a"
            " laboratory between the daemons, which is there from their start. Without"
            f" --daemon the drill makes a job of its own. Here: {', '.join(LIVE_FAULTS)}"
        )
    if not flags.daemon.startswith("unix:"):
        raise ValueError(
            f"{flags.daemon}: expected unix:/PATH, since only processes of this host can be"
            " disturbed"
        )
    low, high = map(float, flags.seconds.split(","))
    return random.Random(flags.seed).uniform(low, high)  # noqa: S311 - not a secret


def find_target(flags: LiveFlags, answer: pb.StatusResponse) -> Target:
    """Raises RefusedError where there is no job, or its processes are not ours to reach."""
    jobs = [job for job in answer.jobs if not job.failure and job.ranks]
    if not jobs:
        raise RefusedError(f"no job runs at {flags.daemon}")
    job = jobs[0]
    ranks = tuple(one.pid for one in job.ranks if one.joined)
    if flags.fault != KILL_RANK:
        pid = _listener(flags.daemon)
        workers = tuple(child.pid for child in psutil.Process(pid).children())
        sign = "SIGSTOP" if flags.fault == STOP_DAEMON else "SIGKILL"
        words = f"{sign} to the daemon at {flags.daemon} (pid {pid})"
        return Target((pid, *workers), words, ranks, job.generation)
    one = random.Random(flags.seed).choice(list(job.ranks))  # noqa: S311 - not a secret
    if one.host != socket.gethostname() or not psutil.pid_exists(one.pid):
        raise RefusedError(
            f"rank {one.rank} (pid {one.pid} on {printable(one.host)}) is no process of this"
            " host, as far as can be seen from here; is it in a container?"
        )
    words = f"SIGKILL to rank {one.rank} (pid {one.pid})"
    return Target((one.pid,), words, ranks, job.generation)


def _listener(address: str) -> int:
    """Process id of who listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(address.removeprefix("unix:"))
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(found)[0]
    if pid <= 0:
        raise RefusedError(f"the daemon at {address} runs in a container that hides its pid")
    return pid


def _may(flags: LiveFlags, target: Target) -> bool:
    warning = (
        f"{target.words}: that disturbs a real job, and may end it"
        + ("; a supervisor has to start the daemon again" * (flags.fault == KILL_DAEMON))
        + "."
    )
    if flags.sure:
        return True
    if sys.stdin.isatty():
        return typer.confirm(f"{warning} Go on?")
    typer.echo(f"{warning} Say --yes if that is what you want.", err=True)
    return False


def _await_progress(daemon: str, generation: str) -> None:
    before = _rounds(daemon, generation)
    deadline = time.monotonic() + PROGRESS_SECONDS
    while _rounds(daemon, generation) == before:
        if time.monotonic() > deadline:
            raise RefusedError(
                f"the job has done no round for {PROGRESS_SECONDS:g} s: what a fault does to it"
                " could not be told"
            )
        time.sleep(LOOK_SECONDS)


def _job(daemon: str, generation: str) -> pb.JobStatus | None:
    jobs = query.status(daemon, ANSWER_SECONDS).jobs
    return next((job for job in jobs if job.generation == generation), None)


def _rounds(daemon: str, generation: str) -> int:
    job = _job(daemon, generation)
    return job.rounds_done if job is not None else 0


def _disturb(flags: LiveFlags, target: Target, seconds: float) -> Finding:
    began = time.monotonic()
    if flags.fault == STOP_DAEMON:
        try:
            _signal(target.pids, signal.SIGSTOP)
            time.sleep(seconds)
        finally:
            _signal(target.pids, signal.SIGCONT)
    else:
        _signal(target.pids, signal.SIGKILL)
    watched = _Watch(flags, target, began, time.monotonic())
    verdict, error = watched.verdict()
    return Finding(
        fault=flags.fault,
        verdict=verdict,
        detect_seconds=watched.detected,
        recover_seconds=watched.recovered,
        steps_lost=0 if verdict == SURVIVED else None,
        bits_equal=None,
        seed=flags.seed,
        repetition=0,
        what=target.words,
        error=error,
    )


def _signal(pids: tuple[int, ...], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


class _Watch:
    """Looks at the daemon until the job goes on, or has failed, or the time is up."""

    def __init__(self, flags: LiveFlags, target: Target, began: float, ended: float) -> None:
        self._flags = flags
        self._target = target
        self._began = began
        self._ended = ended
        self._before: int | None = None
        self.detected: float | None = None
        self.recovered: float | None = None

    def verdict(self) -> tuple[str, str]:
        """And what there is to say to it."""
        deadline = self._ended + 2 * self._flags.timeout
        while time.monotonic() < deadline:
            try:
                job = _job(self._flags.daemon, self._target.generation)
            except query.UnreachableError as error:
                self._notice()
                if not self._living():
                    return CLEANLY, f"its ranks have ended; {error}"
                time.sleep(LOOK_SECONDS)
                continue
            if job is None and not self._living():
                self._notice()
                return CLEANLY, "the daemon holds the job for over, and its ranks have ended"
            if job is not None and job.failure:
                self._notice()
                return CLEANLY, job.failure
            if job is not None and self._goes_on(job.rounds_done):
                return SURVIVED, ""
            time.sleep(LOOK_SECONDS)
        return HUNG, f"neither a round nor an error within {2 * self._flags.timeout:g} s"

    def _goes_on(self, rounds: int) -> bool:
        """A killed rank's last round may still be done; a daemon that is new counts anew."""
        if self._before is None or rounds < self._before:
            self._before = rounds
        if rounds == self._before or self._flags.fault == KILL_RANK:
            return False
        self.recovered = time.monotonic() - self._ended
        return True

    def _notice(self) -> None:
        if self.detected is None:
            self.detected = time.monotonic() - self._began

    def _living(self) -> bool:
        return any(_runs(pid) for pid in self._target.ranks)


def _runs(pid: int) -> bool:
    """A zombie has ended, whatever its parent makes of that."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
