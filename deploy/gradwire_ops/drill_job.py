"""The ranks of a drill: processes that are forked from one that is warm, and watched."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Self

from gradwire_ops.drill_task import Task, serve
from gradwire_ops.drill_verdict import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

    from gradwire_ops.drill_plan import DrillPlan

JOIN_SECONDS = 5.0
_PRELOADED = ["gradwire_ops.drill_rank", "numpy"]


class Ranks:
    """One job. Leaving ends its processes, whatever they are doing."""

    def __init__(self, plan: DrillPlan, addresses: Sequence[str], steps: int) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._folder = tempfile.TemporaryDirectory(prefix="gradwire-")
        settings = {"GRADWIRE_TIMEOUT": f"{plan.timeout:g}"}
        if plan.resume is not None:
            settings["GRADWIRE_RESUME"] = f"{plan.resume:g}"
        self._tasks = [
            Task(
                rank=rank,
                world_size=len(plan.layout),
                daemon=addresses[node],
                store=f"{self._folder.name}/store",
                log=f"{self._folder.name}/rank{rank}.log",
                seed=plan.seed,
                steps=steps,
                elements=plan.elements,
                settings=settings,
            )
            for rank, node in enumerate(plan.layout)
        ]
        self._processes: list[ForkServerProcess] = []
        self._ears: dict[Connection, Record] = {}
        self.records: list[Record] = []
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen, name="ranks", daemon=True)

    def __enter__(self) -> Self:
        try:
            for task in self._tasks:
                self._start(task)
        except BaseException:
            self._end()
            raise
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._listener.join(JOIN_SECONDS)
        for ear in self._ears:
            ear.close()

    def _start(self, task: Task) -> None:
        ear, mouth = self._context.Pipe(duplex=False)
        process = self._context.Process(target=serve, args=(task, mouth), daemon=True)
        process.start()
        mouth.close()
        record = Record(task.rank, process.pid or 0)
        self._processes.append(process)
        self.records.append(record)
        self._ears[ear] = record

    def _end(self) -> None:
        for process in self._processes:
            # Continued first: else a stopped one would stay.
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGCONT)
            process.kill()
        for process in self._processes:
            process.join(JOIN_SECONDS)
        self._folder.cleanup()

    def _listen(self) -> None:
        """Until all have hung up; who keeps quiet is the reader's to find."""
        left = dict(self._ears)
        while left:
            ready = wait(list(left), 1.0)
            for ear in [ear for ear in left if ear in ready]:
                try:
                    word = ear.recv()
                except (EOFError, OSError):
                    del left[ear]
                    continue
                with self._news:
                    _take(left[ear], word)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def await_step(self, step: int, seconds: float) -> bool:
        """Whether some rank has done this step (counted from 0) within this time."""
        with self._news:
            return self._news.wait_for(
                lambda: any(len(one.steps) > step for one in self.records), seconds
            )

    def await_end(self, seconds: float) -> None:
        """Return when all have ended, or after this time: then some records say they run."""
        deadline = time.monotonic() + seconds
        for process, record in zip(self._processes, self.records, strict=True):
            process.join(max(0.0, deadline - time.monotonic()))
            record.exit_code = process.exitcode
        if all(record.exit_code is not None for record in self.records):
            # Their last words may still be in the pipes.
            self._listener.join(JOIN_SECONDS)

    def kill(self, rank: int) -> int:
        """SIGKILL; its process id."""
        self._processes[rank].kill()
        return self.records[rank].pid

    def last_words(self) -> str:
        """Of all ranks' logs, where they said something."""
        texts = []
        for task in self._tasks:
            with suppress(OSError), open(task.log, errors="replace") as file:
                texts.append(f"rank {task.rank}: {file.read()[-2000:]}")
        return "\n".join(texts)


def _take(record: Record, word: tuple[object, ...]) -> None:
    match word:
        case ("step", float(at), int(digest)):
            record.steps.append((at, digest))
        case ("done", str(digest)):
            record.digest = digest
        case ("error", float(at), str(kind), str(text)):
            record.error = (at, kind, text)
        case _:
            raise ValueError(f"a rank said {word!r}")
