"""A whole job in one process: engines of several nodes on a network in memory, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import torch
from prometheus_client import CollectorRegistry

from gradwire_proto.chunks import Cut, cut
from gradwire_proto.dtypes import BY_NAME, DTYPES, OPS, sum_itemsize
from gradwire_server.engine import Engine
from gradwire_server.group import Group, Member, Node, Picture
from gradwire_server.kernels import Kernels
from gradwire_server.metrics import Metrics
from gradwire_server.round import Contribution, Key, Spec
from gradwire_server.terms import Terms
from gradwire_server.transport.memory import MemoryNetwork, MemoryTransport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from gradwire_proto.nonfinite import Finding
    from gradwire_proto.v1 import aggregator_pb2, peer_pb2
    from gradwire_server.local import Ranks
    from gradwire_server.transport.base import Message

CHUNK_BYTES = 64
SLOTS = 64
TIMEOUT_SECONDS = 60.0
WARN_SECONDS = 15.0


class Heard:
    """See engine.Ranks: keeps what the ranks are told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.results: dict[tuple[int, Key], bytes] = {}
        self.findings: dict[tuple[int, Key], Finding | None] = {}
        self.failures: dict[tuple[int, int], aggregator_pb2.Failure] = {}
        """By rank and sequence."""
        self._news = asyncio.Event()

    def result(
        self, rank: int, key: Key, result: memoryview, found: Finding | None = None
    ) -> None:
        """See engine.Ranks."""
        if (rank, key) in self.results:
            raise AssertionError(f"rank {rank} got a second result of {key}")
        self.results[rank, key] = bytes(result)
        self.findings[rank, key] = found
        self._news.set()

    def failed(self, rank: int, sequence: int, failure: aggregator_pb2.Failure) -> None:
        """See engine.Ranks."""
        self.failures[rank, sequence] = failure
        self._news.set()

    async def until(self, there: Callable[[], bool]) -> None:
        """Return once this is true; it is asked whenever a rank was told something."""
        while not there():
            self._news.clear()
            await self._news.wait()


class DelayedTransport:
    """Keeps messages back for some turns of the loop; their order per target stays."""

    def __init__(self, inner: MemoryTransport, seed: int) -> None:
        self._inner = inner
        self._random = random.Random(seed)  # noqa: S311 - delays, not a secret
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def send(self, target: int, message: Message) -> None:
        """See transport.base.Transport."""
        async with self._turns[target]:
            for _ in range(self._random.randrange(8)):
                await asyncio.sleep(0)
            await self._inner.send(target, message)

    def settle(self, before: Key) -> None:
        """See transport.base.Transport."""
        self._inner.settle(before)

    async def close(self) -> None:
        """See transport.base.Transport."""
        await self._inner.close()


class MemoryJob:
    """All nodes of a job; ranks are numbered through the nodes."""

    def __init__(
        self,
        terms: Sequence[Terms],
        shape: Sequence[int],
        seed: int,
        bandwidths: Sequence[int] = (),
        ranks: Ranks | None = None,
    ) -> None:
        """`ranks` are told instead of `heard`."""
        starts = [sum(shape[:node]) for node in range(len(shape))]
        self.places = [range(start, start + n) for start, n in zip(starts, shape, strict=True)]
        self.picture = _picture(self.places, bandwidths)
        self.heard = Heard()
        self.network = MemoryNetwork()
        self.registry = CollectorRegistry()
        metrics, kernels = Metrics(self.registry, "0"), Kernels(1)
        self.engines = [
            Engine(self._group(node), terms[node], ranks or self.heard, None, kernels, metrics)
            for node in range(len(shape))
        ]
        for node, engine in enumerate(self.engines):
            transport = self.network.attach(node, engine)
            engine.connect(DelayedTransport(transport, seed + node))
        self._watches = [asyncio.create_task(engine.watch()) for engine in self.engines]

    def _group(self, node: int) -> Group:
        group = Group(self.picture, node)
        for rank in self.places[node]:
            group.admit(Member(rank, f"host{node}", 100 + rank), self.picture, node)
        return group

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.picture.world_size

    def engine_of(self, rank: int) -> Engine:
        """The engine at whose node a rank sits."""
        return self.engines[self.picture.node_of(rank)]

    def chunks(
        self, rank: int, sequence: int, tensor: torch.Tensor, op: str = "mean"
    ) -> list[Callable[[], None]]:
        """What a rank does to bring a tensor, chunk by chunk."""
        data = memoryview(tensor.view(torch.uint8).numpy().tobytes())
        spec = Spec(OPS[op], BY_NAME[_name(tensor.dtype)], tensor.numel(), 0)
        return [
            partial(self._bring, rank, Key(sequence, chunk), spec, data)
            for chunk in range(_cut(spec).count)
        ]

    def _bring(self, rank: int, key: Key, spec: Spec, data: memoryview) -> None:
        start, stop = _cut(spec).range(key.chunk)
        size = DTYPES[spec.dtype].itemsize
        payload = data[start * size : stop * size]
        self.engine_of(rank).contribute(rank, key, Contribution(spec, 1.0, payload))

    def bring(self, rank: int, sequence: int, tensor: torch.Tensor, op: str = "mean") -> None:
        """A rank brings a whole tensor."""
        for chunk in self.chunks(rank, sequence, tensor, op):
            chunk()

    def bring_all(self, sequence: int, tensors: Iterable[torch.Tensor]) -> None:
        """Every rank brings its tensor."""
        for rank, tensor in enumerate(tensors):
            self.bring(rank, sequence, tensor)

    async def results(
        self, sequence: int, like: torch.Tensor, op: str = "mean"
    ) -> list[torch.Tensor]:
        """Every rank's result, once all have it; what is gathered is cut as for "max"."""
        spec = Spec(OPS[op], BY_NAME[_name(like.dtype)], like.numel(), 0)
        keys = [Key(sequence, chunk) for chunk in range(_cut(spec).count)]
        wanted = {(rank, key) for rank in range(self.world) for key in keys}
        await self.heard.until(lambda: wanted <= self.heard.results.keys())
        joined = [
            b"".join(self.heard.results[rank, key] for key in keys)
            for rank in range(self.world)
        ]
        return [
            torch.frombuffer(bytearray(data), dtype=like.dtype) if data else like.new_empty(0)
            for data in joined
        ]

    async def failures(self, sequence: int, ranks: Iterable[int]) -> set[str]:
        """What these ranks are told of a failure, once all have been."""
        wanted = {(rank, sequence) for rank in ranks}
        await self.heard.until(lambda: wanted <= self.heard.failures.keys())
        return {self.heard.failures[each].reason for each in wanted}

    async def close(self) -> None:
        """End all nodes."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for engine in self.engines:
            await engine.close()


@contextlib.asynccontextmanager
async def job(
    *shape: int,
    schedules: Sequence[peer_pb2.Schedule | None] = (None,),
    seed: int = 0,
    slots: int = SLOTS,
    bandwidths: Sequence[int] = (),
) -> AsyncIterator[MemoryJob]:
    """A job with so many ranks on each node; one schedule for all nodes, or one for each."""
    each = schedules if len(schedules) == len(shape) else [schedules[0]] * len(shape)
    terms = [
        Terms(CHUNK_BYTES, slots, TIMEOUT_SECONDS, WARN_SECONDS, schedule) for schedule in each
    ]
    made = MemoryJob(terms, shape, seed, bandwidths)
    try:
        yield made
    finally:
        await made.close()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cut(spec: Spec) -> Cut:
    return cut(spec.elements, sum_itemsize(spec.op, spec.dtype), CHUNK_BYTES)


def _picture(places: Sequence[range], bandwidths: Sequence[int]) -> Picture:
    nodes = (
        Node(f"n{node}", f"10.0.0.{node}:1", f"host{node}", tuple(ranks), (), bandwidth)
        for node, (ranks, bandwidth) in enumerate(
            zip(places, bandwidths or [0] * len(places), strict=True)
        )
    )
    return Picture("g", sum(map(len, places)), tuple(nodes))
