"""A whole job in virtual time: engines on a network in memory, and what its ranks are told."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import torch

from gradwire_proto.v1 import aggregator_pb2
from gradwire_server.errors import LostError, StoppingError
from gradwire_server.reduce.choose import SCHEDULES
from gradwire_server.round import Key
from gradwire_server.testing import VirtualTimeLoop
from gradwire_server.testing_job import MemoryJob, job
from gradwire_server.transport.base import Part
from scenes.rounds import spec_of
from scenes.script import Scene, command, numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

BRINGS = r"brings? round (\d+): (\w+) of (\d+) x (\w+), all ([-\d.]+)"
SETTLE_SECONDS = 0.001
"""The clock of such a loop moves on only when nothing else is left to do."""

Failure = aggregator_pb2.Failure


@command(r"a job of ([\d, ]+) ranks a node, (ring|tree|direct|one-shot)")
class Jobs(Scene):
    """Chunks have 64 bytes, the timeout is 60 s. Ranks are numbered through the nodes."""

    def __init__(self, shape: str | int, schedule: str) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self._opening = job(*numbers(shape), schedules=[SCHEDULES[schedule]])
        self._schedule = SCHEDULES[schedule]
        self._job: MemoryJob = self._runner.run(self._opening.__aenter__())
        self._sizes: dict[tuple[int, int], tuple[int, torch.dtype]] = {}
        """By rank and sequence: chunks that make the result, and its type."""
        self._told: set[tuple[str, int, int]] = set()
        self._warnings: list[str] = []
        self._listener = _Listener(self._warnings)
        logging.getLogger("gradwire_server.lateness").addHandler(self._listener)

    def close(self) -> list[str]:
        logging.getLogger("gradwire_server.lateness").removeHandler(self._listener)
        self._runner.run(self._opening.__aexit__(None, None, None))
        left = asyncio.all_tasks(self._runner.get_loop())
        rounds = [f"node {n}: {o} open rounds" for n, o in enumerate(self._open()) if o]
        self._runner.close()
        return [*map(repr, left), *rounds]

    @command(rf"ranks? ([\d, ]+) {BRINGS}")
    def bring(  # noqa: PLR0913 - what stands in the script
        self, ranks: str, sequence: int, op: str, elements: int, dtype: str, value: str
    ) -> Iterator[str]:
        tensor = torch.full((elements,), float(value)).to(getattr(torch, dtype))

        def act() -> None:
            for rank in numbers(ranks):
                chunks = self._job.chunks(rank, sequence, tensor, op)
                self._sizes[rank, sequence] = len(chunks), tensor.dtype
                for chunk in chunks:
                    chunk()

        return self._then(act)

    @command(r"node (\d+) is severed")
    def sever(self, node: int) -> Iterator[str]:
        return self._then(lambda: self._job.network.sever(node))

    @command(r"node (\d+) stops")
    def stop(self, node: int) -> Iterator[str]:
        error = StoppingError(f"the daemon of node {node} is stopping")
        return self._then(lambda: self._job.engines[node].fail(error))

    @command(r"rank (\d+) dies")
    def lose(self, rank: int) -> Iterator[str]:
        error = LostError(f"rank {rank} is lost: its process ended without leaving the job")
        return self._then(lambda: self._job.engine_of(rank).fail(error))

    @command(r"rank (\d+) leaves")
    def leave(self, rank: int) -> Iterator[str]:
        return self._then(lambda: self._job.engine_of(rank).leave(rank))

    @command(r"(\d+) seconds pass")
    def wait(self, seconds: int) -> Iterator[str]:
        return self._then(lambda: None, float(seconds))

    @command(r"node (\d+) sends node (\d+) a share of round (\d+): (\d+) x float32")
    def send_share(
        self, source: int, target: int, sequence: int, elements: int
    ) -> Iterator[str]:
        spec = spec_of(f"mean of {elements} x float32")
        payload = (memoryview(bytes(4 * elements)),)
        part = Part(Key(sequence, 0), self._schedule, 0, 0, 1.0, spec, payload)
        return self._then(lambda: self._job.engines[target].receive(source, part))

    @command(r"how many stale frames\?")
    def stale(self) -> Iterator[str]:
        labels = {"kind": "stale_frame"}
        value = self._job.registry.get_sample_value("gradwire_errors_total", labels)
        yield f"{value or 0:g}"

    @command(r"which nodes have open rounds\?")
    def open_rounds(self) -> Iterator[str]:
        for node, rounds in enumerate(self._open()):
            if rounds:
                yield f"node {node}: {rounds}"

    def _open(self) -> list[int]:
        return [engine.headway.open_rounds for engine in self._job.engines]

    def _then(self, act: Callable[[], None], seconds: float = SETTLE_SECONDS) -> Iterator[str]:
        async def main() -> None:
            act()
            await asyncio.sleep(seconds)

        self._run(main())
        yield from (f"warning: {text}" for text in self._warnings)
        self._warnings.clear()
        yield from self._news()

    def _run(self, main: Coroutine[Any, Any, None]) -> None:
        self._runner.run(main)

    def _news(self) -> Iterator[str]:
        """Who heard what since the last command; those who heard the same in one line."""
        said: dict[str, list[int]] = {}
        for (rank, sequence), failure in sorted(self._job.heard.failures.items()):
            if ("failure", rank, sequence) not in self._told:
                self._told.add(("failure", rank, sequence))
                what = "the job" if failure.scope == Failure.SCOPE_JOB else f"round {sequence}"
                kind = Failure.Kind.Name(failure.kind).removeprefix("KIND_")
                said.setdefault(f"{what} failed, {kind}: {failure.reason}", []).append(rank)
        for (rank, sequence), (chunks, dtype) in sorted(self._sizes.items()):
            keys = [(rank, Key(sequence, chunk)) for chunk in range(chunks)]
            told = ("result", rank, sequence) in self._told
            if told or not self._job.heard.results.keys() >= set(keys):
                continue
            self._told.add(("result", rank, sequence))
            data = bytearray(b"".join(self._job.heard.results[key] for key in keys))
            values = torch.frombuffer(data, dtype=dtype).unique().tolist()
            words = ", ".join(f"{value:g}" for value in values)
            said.setdefault(f"round {sequence} gave {words}", []).append(rank)
        for what, ranks in said.items():
            yield f"{', '.join(map(str, ranks))}: {what}"


class _Listener(logging.Handler):
    """Keeps what the daemons say of lateness."""

    def __init__(self, warnings: list[str]) -> None:
        super().__init__()
        self._warnings = warnings

    def emit(self, record: logging.LogRecord) -> None:
        self._warnings.append(record.getMessage())
