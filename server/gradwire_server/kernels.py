"""Arithmetic on buffers: the only code that looks at elements.

Numbers (design): sums are kept in fp32 for 16- and 32-bit floats, in fp64 for fp64, and divided
once. An fp32 mean is summed from tensors scaled by 2^-k, 2^k >= world size, and divided by what
is left of the weights: the same bits as a plain sum over its count, but 3e38 from every rank
does not overflow. (Below world size x 2^-126 the scaling rounds, as DDP's own division before
the sum does.) Integers are exact: sums wrap in their own type, means are summed in int64 and
truncated.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec

import torch

from gradwire_proto.chunks import share_range
from gradwire_proto.dtypes import DTYPES
from gradwire_proto.v1 import tensor_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradwire_server.round import Spec

P = ParamSpec("P")

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

BLOCK_ELEMENTS = 128 * 1024
"""The running sum of a block stays in the cache while the ranks' tensors stream past it."""

_ADDING = (pb.OP_SUM, pb.OP_MEAN)

# Payloads that arrive are bytes, which torch would rather have writable; they are only read. It
# says so once a process: here, where nobody hears it, whatever filters are set later.
with warnings.catch_warnings(action="ignore"):
    torch.frombuffer(b"\0", dtype=torch.uint8)


class Kernels:
    """Runs arithmetic off the event loop where that pays."""

    def __init__(self, threads: int = AUTO) -> None:
        # One chunk, one thread: chunks are many, and torch's own pool would fight ours.
        torch.set_num_threads(1)
        self.rounds = 0
        """Rounds in hand; kept by whoever runs them."""
        if threads == AUTO:
            threads = min(MOST_THREADS, len(os.sched_getaffinity(0)) - KEPT_CORES)
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


class ChunkSum:
    """The sum of one chunk, from the local ranks' tensors to the result.

    `result` is the memory of the result slot: exactly the chunk's bytes. Partial sums live in
    it where the accumulation type is the tensor's own, and in memory of this object's where it
    is wider.
    """

    def __init__(self, spec: Spec, result: memoryview, shares: int, world_size: int) -> None:
        info = DTYPES[spec.dtype]
        mean = spec.op == pb.OP_MEAN
        self._op = spec.op
        self._dtype: torch.dtype = getattr(torch, info.name)
        narrow = (info.is_integer and not mean) or spec.op in (pb.OP_MIN, pb.OP_MAX)
        self._wide: torch.dtype = self._dtype if narrow else getattr(torch, info.accumulator)
        self._mean = mean
        self._scale = (
            2.0 ** -(world_size - 1).bit_length() if mean and not info.is_integer else 1.0
        )
        self._shares = shares
        self._result = _tensor(result, self._dtype)
        self._sum = self._result
        self.weights = [0.0] * shares

    @property
    def elements(self) -> int:
        """Elements of the chunk."""
        return self._result.numel()

    def add_local(self, payloads: list[memoryview], weights: list[float]) -> None:
        """Sum the local ranks' chunks, in the order given."""
        if self._wide != self._dtype:
            self._sum = torch.empty(self.elements, dtype=self._wide)
        inputs = [_tensor(payload, self._dtype) for payload in payloads]
        factors = [weight * self._scale if self._mean else 1.0 for weight in weights]
        for start in range(0, self.elements, BLOCK_ELEMENTS):
            block = slice(start, start + BLOCK_ELEMENTS)
            self._add_block(self._sum[block], [each[block] for each in inputs], factors)
        self.weights = [sum(weights)] * self._shares

    def reduce_alone(self, payloads: list[memoryview], weights: list[float]) -> None:
        """The whole reduction where there is no other node."""
        self.add_local(payloads, weights)
        for share in range(self._shares):
            self.finish(share)

    def add(self, share: int, pieces: Sequence[memoryview], weight: float) -> None:
        """Add another node's partial sum of a share."""
        for total, piece in _beside(self._part(self._sum, share), pieces):
            self._combine(total, piece, 1.0)
        self.weights[share] += weight

    def finish(self, share: int) -> None:
        """Divide a share that holds everybody's sum, and write it to the result."""
        total, out = self._part(self._sum, share), self._part(self._result, share)
        if self._mean and self._wide.is_floating_point:
            divisor = self.weights[share] * self._scale
            if divisor != 1.0:
                total.div_(divisor)
        elif self._mean:
            total.copy_(total.div(int(self.weights[share]), rounding_mode="trunc"))
        if self._sum is not self._result:
            out.copy_(total)

    def store(self, share: int, pieces: Sequence[memoryview]) -> None:
        """Put another node's finished share in its place."""
        for place, piece in _beside(self._part(self._result, share), pieces):
            place.copy_(piece)

    def partial(self, share: int) -> memoryview:
        """A share's sum as it stands, to be sent."""
        return _bytes(self._part(self._sum, share))

    def final(self, share: int) -> memoryview:
        """A finished share, to be sent."""
        return _bytes(self._part(self._result, share))

    def partial_bytes(self, share: int) -> int:
        """Size of a share while it is partial."""
        start, stop = share_range(share, self._shares, self.elements)
        return (stop - start) * self._wide.itemsize

    def final_bytes(self, share: int) -> int:
        """Size of a share once it is final."""
        start, stop = share_range(share, self._shares, self.elements)
        return (stop - start) * self._dtype.itemsize

    def _part(self, tensor: torch.Tensor, share: int) -> torch.Tensor:
        start, stop = share_range(share, self._shares, self.elements)
        return tensor[start:stop]

    def _add_block(
        self, total: torch.Tensor, inputs: list[torch.Tensor], factors: list[float]
    ) -> None:
        first, factor, others = inputs[0], factors[0], inputs[1:]
        if self._op in _ADDING and factor == 1.0 and others and first.dtype == total.dtype:
            # Two at once: one pass over the memory less.
            torch.add(
                first,
                others[0],
                alpha=factors[1] if total.dtype.is_floating_point else 1,
                out=total,
            )
            others, factors = others[1:], factors[1:]
        elif factor == 1.0:
            total.copy_(first)
        elif first.dtype == total.dtype:
            torch.mul(first, factor, out=total)
        else:
            total.copy_(first).mul_(factor)
        for other, factor in zip(others, factors[1:], strict=True):
            self._combine(total, other, factor)

    def _combine(self, total: torch.Tensor, other: torch.Tensor, factor: float) -> None:
        match self._op:
            case pb.OP_MIN:
                torch.minimum(total, other, out=total)
            case pb.OP_MAX:
                torch.maximum(total, other, out=total)
            case pb.OP_PRODUCT:
                total.mul_(other)
            case _ if factor == 1.0 or not total.dtype.is_floating_point:
                total.add_(other)
            case _:
                total.add_(other, alpha=factor)


def _tensor(buffer: memoryview, dtype: torch.dtype) -> torch.Tensor:
    if not buffer.nbytes:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype)


def _beside(
    whole: torch.Tensor, pieces: Sequence[memoryview]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each piece, and the part of the whole that lies where it does."""
    start = 0
    for piece in pieces:
        elements = _tensor(piece, whole.dtype)
        yield whole[start : start + elements.numel()], elements
        start += elements.numel()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data
