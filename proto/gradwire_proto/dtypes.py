"""Element types: their names in torch, their sizes, and the type sums are kept in."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire_proto.v1 import tensor_pb2 as pb


@dataclass(frozen=True, slots=True)
class DtypeInfo:
    """One element type.

    `name` is torch's name; `accumulator` the name of the type in which means are summed (sums,
    too, for floats: fp32 for the 16-bit types, the type itself for the wider ones).
    """

    name: str
    itemsize: int
    accumulator: str

    @property
    def is_integer(self) -> bool:
        """Sums of integers wrap around in their own type, as torch's do; means do not.

        A bool counts as one of a single bit, whose sum is a logical or.
        """
        return "int" in self.name or self.name == "bool"


DTYPES: dict[pb.Dtype, DtypeInfo] = {
    pb.DTYPE_FLOAT16: DtypeInfo("float16", 2, "float32"),
    pb.DTYPE_BFLOAT16: DtypeInfo("bfloat16", 2, "float32"),
    pb.DTYPE_FLOAT32: DtypeInfo("float32", 4, "float32"),
    pb.DTYPE_FLOAT64: DtypeInfo("float64", 8, "float64"),
    pb.DTYPE_INT8: DtypeInfo("int8", 1, "int64"),
    pb.DTYPE_INT16: DtypeInfo("int16", 2, "int64"),
    pb.DTYPE_INT32: DtypeInfo("int32", 4, "int64"),
    pb.DTYPE_INT64: DtypeInfo("int64", 8, "int64"),
    pb.DTYPE_UINT8: DtypeInfo("uint8", 1, "int64"),
    pb.DTYPE_BOOL: DtypeInfo("bool", 1, "int64"),
}

BY_NAME: dict[str, pb.Dtype] = {info.name: dtype for dtype, info in DTYPES.items()}
WIDEST_BYTES = max(info.itemsize for info in DTYPES.values())

LEAST_WEIGHT, MOST_WEIGHT = 2.0**-32, 2.0**32
"""Weights beyond these could take an fp32 sum out of its range."""


def is_weight(weight: float) -> bool:
    """Whether a rank may have this weight in a mean; with 0 it brings nothing."""
    return weight == 0.0 or LEAST_WEIGHT <= weight <= MOST_WEIGHT


OPS: dict[str, pb.Op] = {
    "sum": pb.OP_SUM,
    "mean": pb.OP_MEAN,
    "min": pb.OP_MIN,
    "max": pb.OP_MAX,
    "product": pb.OP_PRODUCT,
    "band": pb.OP_BAND,
    "bor": pb.OP_BOR,
    "bxor": pb.OP_BXOR,
}
"""What reduces, by the names that callers use."""

OP_NAMES: dict[pb.Op, str] = {
    **{op: name for name, op in OPS.items()},
    pb.OP_GATHER: "gather",
}
"""Every op that is known, in words."""

_BITWISE = (pb.OP_BAND, pb.OP_BOR, pb.OP_BXOR)


def is_defined(op: pb.Op, dtype: pb.Dtype) -> bool:
    """Whether a known op has a meaning for a known dtype."""
    if op == pb.OP_GATHER:
        return dtype == pb.DTYPE_UINT8
    if op in _BITWISE:
        return DTYPES[dtype].is_integer
    return op != pb.OP_MEAN or dtype != pb.DTYPE_BOOL


def sum_name(op: pb.Op, dtype: pb.Dtype) -> str:
    """The type, torch's name, in which this op sums this dtype."""
    info = DTYPES[dtype]
    narrow = (info.is_integer and op != pb.OP_MEAN) or op in (pb.OP_MIN, pb.OP_MAX)
    return info.name if narrow else info.accumulator


def sum_itemsize(op: pb.Op, dtype: pb.Dtype) -> int:
    """Bytes of one element in that type."""
    return DTYPES[BY_NAME[sum_name(op, dtype)]].itemsize
