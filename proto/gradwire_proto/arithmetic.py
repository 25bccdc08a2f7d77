"""The agreed arithmetic: how tensors become one, whoever adds them.

Sums are kept in fp32 for 16- and 32-bit floats, in fp64 for fp64, and divided once. A floating
mean is summed from tensors scaled by 2^-k, 2^k >= world size, and divided by what is left of
the weights: the same bits as a plain sum over its count, but 3e38 from every rank does not
overflow. (Below world size x 2^-126 the scaling rounds, as DDP's own division before the sum
does.) Integers are exact: sums wrap in their own type, means are summed in int64 and truncated.
The sum of bools is their logical or, the product their logical and.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradwire_proto.dtypes import DTYPES, sum_name
from gradwire_proto.v1 import tensor_pb2 as pb

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

SERIAL_ELEMENTS = 32704
"""Up to 32768 elements torch adds in the calling thread; beyond, it wakes its pool, which the
training has better use for."""

# Payloads that arrive are bytes, which torch would rather have writable; they are only read. It
# says so once a process: here, where nobody hears it, whatever filters are set later.
with warnings.catch_warnings(action="ignore"):
    torch.frombuffer(b"\0", dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How one collective is summed.

    `part` is a rank's tensor, or a piece of it, in the tensor's own type; `total` the sum of
    the same elements, in `wide`.
    """

    op: pb.Op
    dtype: torch.dtype
    wide: torch.dtype
    mean: bool
    scale: float

    @classmethod
    def of(cls, op: pb.Op, dtype: pb.Dtype, world_size: int) -> Arithmetic:
        """For an op and a dtype that are known."""
        info = DTYPES[dtype]
        mean = op == pb.OP_MEAN
        scaled = mean and not info.is_integer
        return cls(
            op,
            getattr(torch, info.name),
            getattr(torch, sum_name(op, dtype)),
            mean,
            2.0 ** -(world_size - 1).bit_length() if scaled else 1.0,
        )

    def begin(self, total: torch.Tensor, part: torch.Tensor, weight: float) -> None:
        """The first part of a sum."""
        factor = self._factor(weight)
        if not factor:
            total.zero_()
        elif factor == 1.0:
            total.copy_(part)
        elif part.dtype == total.dtype:
            torch.mul(part, factor, out=total)
        else:
            total.copy_(part).mul_(factor)

    def add(self, total: torch.Tensor, part: torch.Tensor, weight: float) -> None:
        """One more part. One of weight 0 adds nothing, not even what is no number in it."""
        if factor := self._factor(weight):
            self.combine(total, part, factor)

    def has_result(self, weights: float) -> bool:
        """Whether a sum with these weights in it has one: no mean has, where all are 0."""
        return not self.mean or weights != 0.0

    def combine(self, total: torch.Tensor, other: torch.Tensor, factor: float = 1.0) -> None:
        """Add what is scaled already, another node's sum for instance."""
        match self.op:
            case pb.OP_MIN:
                torch.minimum(total, other, out=total)
            case pb.OP_MAX:
                torch.maximum(total, other, out=total)
            case pb.OP_PRODUCT:
                total.mul_(other)
            case pb.OP_BAND:
                total.bitwise_and_(other)
            case pb.OP_BOR | pb.OP_GATHER:
                total.bitwise_or_(other)
            case pb.OP_BXOR:
                total.bitwise_xor_(other)
            case _ if factor == 1.0 or not total.dtype.is_floating_point:
                total.add_(other)
            case _:
                total.add_(other, alpha=factor)

    def finish(self, total: torch.Tensor, result: torch.Tensor, weights: float) -> None:
        """Divide a sum that holds everybody's part, and give it the tensor's own type."""
        if self.mean and self.wide.is_floating_point:
            divisor = weights * self.scale
            if divisor != 1.0:
                total.div_(divisor)
        elif self.mean:
            total.copy_(total.div(int(weights), rounding_mode="trunc"))
        if result.data_ptr() != total.data_ptr():
            result.copy_(total)

    def _factor(self, weight: float) -> float:
        return weight * self.scale if self.mean else 1.0


def view(buffer: ArrayLike | memoryview, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as a flat tensor; nothing is copied."""
    if not memoryview(buffer).nbytes:  # type: ignore[arg-type]  # numpy arrays are buffers, too
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype)


def blocks(elements: int) -> list[tuple[int, int]]:
    """Start and end of pieces that torch works on in the calling thread."""
    if elements <= SERIAL_ELEMENTS or torch.get_num_threads() == 1:
        return [(0, elements)]
    starts = range(0, elements, SERIAL_ELEMENTS)
    return [(start, min(start + SERIAL_ELEMENTS, elements)) for start in starts]
