"""Sums on buffers: the daemon's part of what gradwire_proto.arithmetic defines."""

from __future__ import annotations

import asyncio
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeAlias

import torch

from gradwire_proto.arithmetic import BLOCK_ELEMENTS, Arithmetic, view
from gradwire_proto.nonfinite import NOBODY, Finding, first_nonfinite, least
from gradwire_proto.v1 import tensor_pb2
from gradwire_server.cgroup import Cgroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradwire_server.local import Place
    from gradwire_server.round import Spec

P = ParamSpec("P")

Partial: TypeAlias = "tuple[Sequence[memoryview], float]"
"""Pieces of a partial sum, in order, and the weights that are in it."""

AUTO = -1
"""Threads for sums: as many as the machine has cores to spare."""

KEPT_CORES = 2
"""Cores for the event loop and the ranks. On fewer than three, threads only fight over the GIL
with the loop, which adds faster by itself."""

MOST_THREADS = 8

INLINE_BYTES = 256 * 1024
"""Work on fewer bytes costs less than handing it to a thread and waking up again."""

LONE_INLINE_BYTES = 16 << 20
"""With one round in hand nothing else could run meanwhile; then this much is done in place."""


class Kernels:
    """Runs arithmetic off the event loop where that pays."""

    def __init__(self, threads: int = AUTO) -> None:
        # One chunk, one thread: chunks are many, and torch's own pool would fight ours.
        torch.set_num_threads(1)
        self.rounds = 0
        """Rounds in hand; kept by whoever runs them."""
        if threads == AUTO:
            threads = min(MOST_THREADS, _processors() - KEPT_CORES)
        self._pool = ThreadPoolExecutor(threads, "gradwire-kernel") if threads > 0 else None

    async def run(
        self, size: int, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run work that touches `size` bytes. Once begun it ends, even if the caller is
        cancelled.

        A cancelled caller waits for it: only then may the buffers be used for something else.
        """
        inline = size <= (INLINE_BYTES if self.rounds > 1 else LONE_INLINE_BYTES)
        if inline or self._pool is None:
            work(*args, **kwargs)
            return
        running = asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: work(*args, **kwargs)
        )
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def close(self) -> None:
        """Stop the threads; running work ends first."""
        if self._pool is not None:
            self._pool.shutdown()


def _processors() -> int:
    """How many this process may keep busy."""
    quota = Cgroup().processors
    present = len(os.sched_getaffinity(0))
    return present if quota is None else min(present, math.floor(quota))


class ChunkSum:
    """The sum of one chunk, from the local ranks' tensors to the result.

    `place` has the memory of both: the sum in the type in which it is kept, and the result in
    the tensor's own; the same memory where the types are the same. `shares` has the elements
    [start, stop) of each.
    """

    def __init__(
        self,
        spec: Spec,
        place: Place,
        elements: int,
        shares: Sequence[tuple[int, int]],
        world_size: int,
    ) -> None:
        self._arithmetic = Arithmetic.of(spec.op, spec.dtype, world_size)
        self._wide, self._dtype = self._arithmetic.wide, self._arithmetic.dtype
        self._shares = shares
        self.elements = elements
        self._sum = view(place.total(elements * self._wide.itemsize), self._wide)
        self._result = self._sum
        if self._wide != self._dtype:
            self._result = view(place.result(elements * self._dtype.itemsize), self._dtype)
        self._gathers = spec.op == tensor_pb2.OP_GATHER
        self.weights = [0.0] * len(shares)
        """Of what each share holds. One to which nothing was brought, of what is gathered, is
        blank: its memory holds anything."""
        self.findings: list[Finding | None] = [None] * len(shares)
        """Of each share: while it is partial, the lowest rank that is known to have brought
        something not finite; once it is final, whether it has it."""
        self._inspected = spec.inspected and self._arithmetic.is_floating_point

    @property
    def size(self) -> int:
        """Bytes of the chunk in its own type."""
        return self.elements * self._dtype.itemsize

    def whole(self) -> memoryview:
        """The result, once it is there."""
        return bytes_of(self._result)

    @property
    def finding(self) -> Finding | None:
        """Where the result is not finite, once it is there."""
        return least(self.findings)

    def adopt(self, weight: float, found: Finding | None = None) -> None:
        """The local ranks have made their sum by themselves; it is in its place."""
        self.weights = [weight] * len(self._shares)
        self.findings = [found] * len(self._shares)

    def add_local(
        self, payloads: list[memoryview], weights: list[float], ranks: Sequence[int] = ()
    ) -> None:
        """Sum the local ranks' chunks, in the order given; none, where nothing is brought."""
        if not payloads:
            return
        self._inspect(payloads, weights, ranks)
        inputs = [view(payload, self._dtype) for payload in payloads]
        for start in range(0, self.elements, BLOCK_ELEMENTS):
            block = slice(start, start + BLOCK_ELEMENTS)
            total = self._sum[block]
            self._arithmetic.begin(total, inputs[0][block], weights[0])
            for each, weight in zip(inputs[1:], weights[1:], strict=True):
                self._arithmetic.add(total, each[block], weight)
        self.weights = [sum(weights)] * len(self._shares)

    def _inspect(
        self, payloads: Sequence[memoryview], weights: Sequence[float], ranks: Sequence[int]
    ) -> None:
        if not self._inspected:
            return
        for rank, weight, payload in zip(ranks, weights, payloads, strict=True):
            element = first_nonfinite(view(payload, self._dtype))
            if element is not None and self._arithmetic.counts(weight):
                self.findings = [Finding(rank, element)] * len(self._shares)
                return

    def note(self, share: int, found: Finding | None) -> None:
        """Another node says so of what it sent of a share."""
        self.findings[share] = least((self.findings[share], found))

    def add(self, share: int, pieces: Sequence[memoryview], weight: float) -> None:
        """Add another node's partial sum of a share."""
        blank = self._is_blank(share)
        for total, piece in _beside(self._part(self._sum, share), pieces):
            if blank:
                total.copy_(piece)
            else:
                self._arithmetic.combine(total, piece)
        self.weights[share] += weight

    def fold(self, share: int, before: Sequence[Partial], after: Sequence[Partial]) -> None:
        """Add other nodes' partial sums of a share, some of them before the node's own."""
        if self._gathers:
            # Bits are the same in any order, and a blank share can't be put before others.
            before, after = (), [*before, *after]
        if before:
            own = ((memoryview(bytes(self.partial(share))),), self.weights[share])
            (pieces, self.weights[share]), *others = before
            for place, piece in _beside(self._part(self._sum, share), pieces):
                place.copy_(piece)
            after = [*others, own, *after]
        for pieces, weight in after:
            self.add(share, pieces, weight)

    def has_result(self, share: int) -> bool:
        """Whether a share that holds everybody's sum can be finished; see Arithmetic."""
        return self._arithmetic.has_result(self.weights[share])

    def finish(self, share: int) -> None:
        """Divide a share that holds everybody's sum, and write it to the result."""
        total, out = self._part(self._sum, share), self._part(self._result, share)
        if self._is_blank(share):
            total.zero_()
        found = None
        for start in range(0, max(1, len(total)), BLOCK_ELEMENTS):
            block = slice(start, start + BLOCK_ELEMENTS)
            self._arithmetic.finish(total[block], out[block], self.weights[share])
            if found is None and self._arithmetic.is_floating_point:
                found = first_nonfinite(out[block], start)
        self._conclude(share, found)

    def _conclude(self, share: int, found: int | None) -> None:
        """Say of a final share which of its elements is the first that is not finite."""
        first, _ = self._shares[share]
        noted, own = self.findings[share], None
        if found is not None:
            own = least((noted, Finding(NOBODY, first + found)))
        self.findings[share] = own

    def store(
        self, share: int, pieces: Sequence[memoryview], found: Finding | None = None
    ) -> None:
        """Put another node's finished share in its place."""
        self.findings[share] = found
        for place, piece in _beside(self._part(self._result, share), pieces):
            place.copy_(piece)

    def is_ready(self, share: int) -> bool:
        """A share can be sent as it is; else `encode` it first."""
        return True

    def encode(self, share: int) -> None:
        """Make a share ready to be sent."""

    def partial(self, share: int) -> memoryview:
        """A share's sum as it stands, to be sent; nothing of a blank one."""
        if self._is_blank(share):
            return memoryview(b"")
        return bytes_of(self._part(self._sum, share))

    def final(self, share: int) -> memoryview:
        """A finished share, to be sent."""
        return bytes_of(self._part(self._result, share))

    def partial_bytes(self, share: int) -> int:
        """Size of a share while it is partial."""
        start, stop = self._shares[share]
        return (stop - start) * self._wide.itemsize

    def raw_bytes(self, share: int, size: int) -> int:
        """What a share would take that is so large on the wire, if that were exact."""
        return size

    def arriving_bytes(self, share: int, weight: float) -> int:
        """Size of another node's partial sum with this weight: a blank one has none."""
        return 0 if self._gathers and not weight else self.partial_bytes(share)

    def final_bytes(self, share: int) -> int:
        """Size of a share once it is final."""
        start, stop = self._shares[share]
        return (stop - start) * self._dtype.itemsize

    def _is_blank(self, share: int) -> bool:
        return self._gathers and not self.weights[share]

    def _part(self, tensor: torch.Tensor, share: int) -> torch.Tensor:
        start, stop = self._shares[share]
        return tensor[start:stop]


def _beside(
    whole: torch.Tensor, pieces: Sequence[memoryview]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each piece, and the part of the whole that lies where it does."""
    start = 0
    for piece in pieces:
        elements = view(piece, whole.dtype)
        yield whole[start : start + elements.numel()], elements
        start += elements.numel()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's memory."""
    return tensor.view(torch.uint8).numpy().data
