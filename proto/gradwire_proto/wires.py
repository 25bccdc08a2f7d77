"""The wires: how sums are written between the nodes, by the names that callers use."""

from __future__ import annotations

from gradwire_proto.v1 import tensor_pb2 as pb

WIRES: dict[str, pb.Wire] = {
    "exact": pb.WIRE_EXACT,
    "bf16": pb.WIRE_BF16,
    "fp16": pb.WIRE_FP16,
    "int8": pb.WIRE_INT8,
    "fp8": pb.WIRE_FP8,
    "topk": pb.WIRE_TOPK,
}

WIRE_NAMES: dict[pb.Wire, str] = {wire: name for name, wire in WIRES.items()}

LOSSY: frozenset[pb.Wire] = frozenset(WIRES.values()) - {pb.WIRE_EXACT}

ROUNDED_AT_RANDOM = (pb.WIRE_INT8, pb.WIRE_FP8)
"""Wires that can round up or down at random."""

FED_BACK = (pb.WIRE_INT8, pb.WIRE_FP8, pb.WIRE_TOPK)
"""Wires that lose so much that it is added the next time, unless that is switched off."""

MOST_ELEMENTS = 1 << 40
"""Of a tensor that crosses a lossy wire."""

_OPS = (pb.OP_SUM, pb.OP_MEAN)
_DTYPES = (pb.DTYPE_FLOAT16, pb.DTYPE_BFLOAT16, pb.DTYPE_FLOAT32)


def may_lose(op: pb.Op, dtype: pb.Dtype) -> bool:
    """Whether a lossy wire carries this: sums and means that are kept in fp32. Everything else
    crosses exactly, whatever wire is asked for.
    """
    return op in _OPS and dtype in _DTYPES
