from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_FLOAT16: _ClassVar[Dtype]
    DTYPE_BFLOAT16: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_FLOAT64: _ClassVar[Dtype]
    DTYPE_INT8: _ClassVar[Dtype]
    DTYPE_INT16: _ClassVar[Dtype]
    DTYPE_INT32: _ClassVar[Dtype]
    DTYPE_INT64: _ClassVar[Dtype]
    DTYPE_UINT8: _ClassVar[Dtype]
    DTYPE_BOOL: _ClassVar[Dtype]

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_UNSPECIFIED: _ClassVar[Op]
    OP_SUM: _ClassVar[Op]
    OP_MEAN: _ClassVar[Op]
    OP_MIN: _ClassVar[Op]
    OP_MAX: _ClassVar[Op]
    OP_PRODUCT: _ClassVar[Op]
    OP_BAND: _ClassVar[Op]
    OP_BOR: _ClassVar[Op]
    OP_BXOR: _ClassVar[Op]
    OP_GATHER: _ClassVar[Op]

class Wire(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WIRE_UNSPECIFIED: _ClassVar[Wire]
    WIRE_EXACT: _ClassVar[Wire]
    WIRE_BF16: _ClassVar[Wire]
    WIRE_FP16: _ClassVar[Wire]
    WIRE_INT8: _ClassVar[Wire]
    WIRE_FP8: _ClassVar[Wire]
    WIRE_TOPK: _ClassVar[Wire]
DTYPE_UNSPECIFIED: Dtype
DTYPE_FLOAT16: Dtype
DTYPE_BFLOAT16: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_FLOAT64: Dtype
DTYPE_INT8: Dtype
DTYPE_INT16: Dtype
DTYPE_INT32: Dtype
DTYPE_INT64: Dtype
DTYPE_UINT8: Dtype
DTYPE_BOOL: Dtype
OP_UNSPECIFIED: Op
OP_SUM: Op
OP_MEAN: Op
OP_MIN: Op
OP_MAX: Op
OP_PRODUCT: Op
OP_BAND: Op
OP_BOR: Op
OP_BXOR: Op
OP_GATHER: Op
WIRE_UNSPECIFIED: Wire
WIRE_EXACT: Wire
WIRE_BF16: Wire
WIRE_FP16: Wire
WIRE_INT8: Wire
WIRE_FP8: Wire
WIRE_TOPK: Wire

class Spec(_message.Message):
    __slots__ = ("op", "dtype", "elements", "shape_digest", "shapes", "wire", "ratio", "stochastic", "seed", "identity", "feedback", "inspected", "revoked", "skips", "first_step")
    OP_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SHAPES_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    STOCHASTIC_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    INSPECTED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    SKIPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    op: Op
    dtype: Dtype
    elements: int
    shape_digest: int
    shapes: str
    wire: Wire
    ratio: float
    stochastic: bool
    seed: int
    identity: int
    feedback: bool
    inspected: bool
    revoked: bool
    skips: bool
    first_step: bool
    def __init__(self, op: _Optional[_Union[Op, str]] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., elements: _Optional[int] = ..., shape_digest: _Optional[int] = ..., shapes: _Optional[str] = ..., wire: _Optional[_Union[Wire, str]] = ..., ratio: _Optional[float] = ..., stochastic: _Optional[bool] = ..., seed: _Optional[int] = ..., identity: _Optional[int] = ..., feedback: _Optional[bool] = ..., inspected: _Optional[bool] = ..., revoked: _Optional[bool] = ..., skips: _Optional[bool] = ..., first_step: _Optional[bool] = ...) -> None: ...

class NonFinite(_message.Message):
    __slots__ = ("rank", "element")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    element: int
    def __init__(self, rank: _Optional[int] = ..., element: _Optional[int] = ...) -> None: ...
