"""The lossy wires, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.codecs.base import SEGMENT_ELEMENTS, Codec, encoded_size, segments
from gradwire_server.codecs.bf16 import Bf16

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SEGMENT_ELEMENTS", "Codec", "codec_of", "encoded_size", "segments"]

_CODECS: dict[pb.Wire, Callable[[float, bool], Codec]] = {
    pb.WIRE_BF16: lambda ratio, stochastic: Bf16(),  # noqa: ARG005
}


def codec_of(wire: pb.Wire, ratio: float = 0.0, *, stochastic: bool = False) -> Codec:
    """The codec of a lossy wire. Raises ValueError for a wire that is none."""
    if wire not in _CODECS:
        raise ValueError(f"wire {wire} has no codec")
    return _CODECS[wire](ratio, stochastic)
