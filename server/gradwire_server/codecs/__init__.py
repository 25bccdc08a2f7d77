"""The lossy wires, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.codecs.base import SEGMENT_ELEMENTS, Codec, encoded_size, segments
from gradwire_server.codecs.bf16 import Bf16
from gradwire_server.codecs.fp8 import Fp8
from gradwire_server.codecs.fp16 import Fp16
from gradwire_server.codecs.int8 import Int8
from gradwire_server.codecs.top_k import TopK

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SEGMENT_ELEMENTS", "Codec", "codec_of", "encoded_size", "segments"]

_CODECS: dict[pb.Wire, Callable[[float, bool], Codec]] = {
    pb.WIRE_BF16: lambda _ratio, _stochastic: Bf16(),
    pb.WIRE_FP16: lambda _ratio, _stochastic: Fp16(),
    pb.WIRE_INT8: lambda _ratio, stochastic: Int8(stochastic=stochastic),
    pb.WIRE_FP8: lambda _ratio, stochastic: Fp8(stochastic=stochastic),
    pb.WIRE_TOPK: lambda ratio, _stochastic: TopK(ratio),
}


def codec_of(wire: pb.Wire, ratio: float = 0.0, *, stochastic: bool = False) -> Codec:
    """The codec of a lossy wire. Raises ValueError for a wire that is none, or a bad ratio."""
    if wire not in _CODECS:
        raise ValueError(f"wire {wire} has no codec")
    return _CODECS[wire](ratio, stochastic)
