from __future__ import annotations

import pytest
import torch

from gradwire_proto.dtypes import (
    BY_NAME,
    DTYPES,
    OP_NAMES,
    OPS,
    WIDEST_BYTES,
    DtypeInfo,
    is_defined,
)
from gradwire_proto.v1 import tensor_pb2 as pb


def test_every_dtype_and_op_of_the_contract_is_known() -> None:
    assert set(DTYPES) == set(pb.Dtype.values()) - {pb.DTYPE_UNSPECIFIED}
    assert set(OP_NAMES) == set(pb.Op.values()) - {pb.OP_UNSPECIFIED}
    assert set(OPS.values()) == set(OP_NAMES) - {pb.OP_GATHER}


def test_a_dtype_has_the_ops_that_mean_something_for_it() -> None:
    undefined = {
        (op, info.name)
        for op, number in OPS.items()
        for dtype, info in DTYPES.items()
        if not is_defined(number, dtype)
    }
    floats = ("float16", "bfloat16", "float32", "float64")
    bitwise = {(op, name) for op in ("band", "bor", "bxor") for name in floats}
    assert undefined == bitwise | {("mean", "bool")}
    assert [dtype for dtype in DTYPES if is_defined(pb.OP_GATHER, dtype)] == [pb.DTYPE_UINT8]


@pytest.mark.parametrize("info", DTYPES.values(), ids=lambda info: info.name)
def test_a_dtype_is_torchs_by_name_and_size(info: DtypeInfo) -> None:
    dtype = getattr(torch, info.name)
    assert dtype.itemsize == info.itemsize <= WIDEST_BYTES
    assert info.is_integer == (not dtype.is_floating_point)


@pytest.mark.parametrize("info", DTYPES.values(), ids=lambda info: info.name)
def test_sums_are_kept_in_a_type_that_holds_every_element(info: DtypeInfo) -> None:
    narrow, wide = getattr(torch, info.name), getattr(torch, info.accumulator)
    assert torch.promote_types(narrow, wide) == wide
    if info.is_integer:
        assert wide == torch.int64
    else:
        assert wide.itemsize >= 4


def test_names_lead_back_to_their_dtype() -> None:
    assert {DTYPES[dtype].name: dtype for dtype in DTYPES} == BY_NAME
