"""A tensor as the daemon takes it: its elements in a row, and a description to compare."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradwire._wires import carried
from gradwire_proto.dtypes import (
    BY_NAME,
    DTYPES,
    LEAST_WEIGHT,
    MOST_WEIGHT,
    OPS,
    is_defined,
    is_weight,
)
from gradwire_proto.v1 import tensor_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire._wires import Coded

Shape: TypeAlias = tuple[int, ...]

LONGEST_TEXT = 400

_COMPLEX_OPS = ("sum", "mean")


@dataclass(frozen=True, eq=False, slots=True)
class Described:
    """What a rank brings, in words for the daemon; the same object for equal tensors."""

    spec: pb.Spec
    written: bytes
    """The spec, serialised."""


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements in one row, as real numbers: the same memory, or a copy."""
    if tensor.is_contiguous() and not tensor.is_complex() and not tensor.is_neg():
        return tensor.detach().view(-1)
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    compact = plain.contiguous()
    # An empty tensor may have any stride, and be contiguous all the same.
    return compact.view(-1) if compact.numel() else compact.new_empty(0)


def unflatten(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with the elements of the row that flatten made of it."""
    if flat.data_ptr() != tensor.data_ptr():
        target = tensor.detach()
        if target.is_complex():
            flat = torch.view_as_complex(flat.view(*target.shape, 2))
        target.copy_(flat.view(target.shape))
    else:
        mark_written(tensor)
    return tensor


def mark_written(tensor: torch.Tensor) -> None:
    """It is written to as bytes, which autograd does not see: it must not take it for what it
    was.
    """
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's own memory. Raises TypeError or ValueError unless it is in one piece."""
    check_layout(tensor)
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("expected a tensor that is what its memory says, got a lazy view")
    if not tensor.is_contiguous():
        raise ValueError(
            f"expected a contiguous tensor, got strides {tensor.stride()} for shape"
            f" {tuple(tensor.shape)}; call contiguous() first"
        )
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def describe(
    tensor: torch.Tensor, shapes: Sequence[Shape], op: str, weight: float, note: str = ""
) -> Described:
    """What this rank brings. Raises TypeError or ValueError for what can't be reduced.

    Collectives with different notes are different, though their tensors may be alike.
    """
    _check(tensor, op, weight)
    elements = tensor.numel() * (2 if tensor.is_complex() else 1)
    return _reduced(OPS[op], tensor.dtype, elements, tuple(shapes), note)


# The same few buckets come again in every step. Nobody writes to what these two return.


@lru_cache(maxsize=1024)
def _reduced(
    op: pb.Op, dtype: torch.dtype, elements: int, shapes: tuple[Shape, ...], note: str
) -> Described:
    real = dtype.to_real() if dtype.is_complex else dtype
    text = ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    return _spec(op, BY_NAME[_name(real)], elements, f"{text}, {note}" if note else text)


@lru_cache(maxsize=1024)
def describe_gather(dtype: torch.dtype, elements: int) -> Described:
    """A tensor that is gathered: it travels as bytes, whatever its type."""
    size, text = elements * dtype.itemsize, f"{elements} x {_name(dtype)}"
    return _spec(pb.OP_GATHER, pb.DTYPE_UINT8, size, text)


def _spec(op: pb.Op, dtype: pb.Dtype, elements: int, text: str) -> Described:
    spec = pb.Spec(
        op=op,
        dtype=dtype,
        elements=elements,
        shape_digest=zlib.crc32(text.encode()),
        shapes=text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ...",
        wire=pb.WIRE_EXACT,
    )
    return Described(spec, spec.SerializeToString())


@lru_cache(maxsize=1024)
def over(whole: Described, coded: Coded) -> Described:
    """The same over a lossy wire, if that carries it."""
    if not carried(coded.wire, whole.spec.op, whole.spec.dtype):
        return whole
    spec, wire, naming = pb.Spec(), coded.wire, coded.naming
    spec.CopyFrom(whole.spec)
    spec.wire = wire.number
    spec.stochastic = wire.is_stochastic
    spec.seed = wire.seed if wire.is_stochastic else 0
    if wire.name == "topk":
        spec.ratio = wire.ratio
    if naming is not None:
        spec.identity = naming.identity
        spec.feedback = wire.feeds_back
    return Described(spec, spec.SerializeToString())


@lru_cache(maxsize=1024)
def part_of(whole: Described, elements: int) -> Described:
    """A part of so many elements of a tensor that is described as a whole."""
    spec = pb.Spec()
    spec.CopyFrom(whole.spec)
    spec.elements = elements
    return Described(spec, spec.SerializeToString())


def is_inexact(tensor: torch.Tensor) -> bool:
    """It holds floating-point numbers, real or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def can_be_nonfinite(whole: Described) -> bool:
    """It is reduced, and may hold NaNs and infinities."""
    spec = whole.spec
    return spec.op != pb.OP_GATHER and not DTYPES[spec.dtype].is_integer


@lru_cache(maxsize=1024)
def inspected(whole: Described, *, skips: bool = False) -> Described:
    """The same, in which all ranks look for NaNs and infinities."""
    spec = pb.Spec()
    spec.CopyFrom(whole.spec)
    spec.inspected, spec.skips = True, skips
    return Described(spec, spec.SerializeToString())


@lru_cache(maxsize=1024)
def of_first_step(whole: Described) -> Described:
    """The same, of a training's first step."""
    spec = pb.Spec()
    spec.CopyFrom(whole.spec)
    spec.first_step = True
    return Described(spec, spec.SerializeToString())


@lru_cache(maxsize=1024)
def revoking(whole: Described) -> Described:
    """The same, after a step that was not finite."""
    spec = pb.Spec()
    spec.CopyFrom(whole.spec)
    spec.revoked = True
    return Described(spec, spec.SerializeToString())


def _check(tensor: torch.Tensor, op: str, weight: float) -> None:
    if op not in OPS:
        raise ValueError(f"expected op to be one of {', '.join(OPS)}, got {op!r}")
    check_layout(tensor)
    check_op(op, tensor.dtype)
    real = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
    if _name(real) not in BY_NAME:
        raise TypeError(
            f"can't reduce {tensor.dtype} with op {op}; expected one of {', '.join(BY_NAME)}"
        )
    if not is_defined(OPS[op], BY_NAME[_name(real)]):
        kind = "a number" if op == "mean" else "an integer or bool"
        raise TypeError(f"op {op} has no meaning for {tensor.dtype}; expected {kind}")
    check_weight(weight)
    if weight != 1.0 and (op != "mean" or DTYPES[BY_NAME[_name(real)]].is_integer):
        raise ValueError(
            f"a weight needs op mean and a floating-point tensor, got {op} of {real}"
        )


def check_weight(weight: float) -> None:
    """Raises ValueError for what no rank may have in a mean."""
    if not is_weight(weight):
        raise ValueError(
            f"expected a weight of 0, or {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, got {weight}"
        )


def check_op(op: str, dtype: torch.dtype) -> None:
    """Raises TypeError for an operation that complex numbers don't have."""
    if dtype.is_complex and op not in _COMPLEX_OPS:
        raise TypeError(f"op {op} has no meaning for {dtype}; expected sum or mean")


def check_layout(tensor: torch.Tensor) -> None:
    """Raises TypeError or ValueError for a tensor whose memory is of no use here."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise TypeError(
            f"this release takes CPU tensors, got one on {tensor.device}; register torch's own"
            " hook for GPU models, or move the tensor first"
        )
    if tensor.layout != torch.strided:
        raise TypeError(
            f"expected a dense tensor, got layout {tensor.layout}; use sparse=False in the"
            " embedding, or tensor.to_dense()"
        )
    if not tensor.is_contiguous() and any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        raise ValueError(
            "expected a tensor whose elements have a place each, got an expanded one; clone()"
            " it"
        )


@lru_cache(maxsize=64)
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
