"""What a daemon says of a failure, as the error that a training script sees."""

from __future__ import annotations

from gradwire._errors import (
    AggregationError,
    LostError,
    MismatchError,
    RoundTimeoutError,
    ZeroWeightError,
)
from gradwire_proto.v1 import aggregator_pb2 as pb

_ERRORS: dict[pb.Failure.Kind, type[AggregationError]] = {
    pb.Failure.KIND_MISMATCH: MismatchError,
    pb.Failure.KIND_TIMEOUT: RoundTimeoutError,
    pb.Failure.KIND_LOST: LostError,
    pb.Failure.KIND_WEIGHT: ZeroWeightError,
}


def error_of(failure: pb.Failure) -> AggregationError:
    """The error that a failure of one collective, or one letter, speaks of."""
    return _ERRORS.get(failure.kind, AggregationError)(failure.reason)
