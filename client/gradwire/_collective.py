"""One tensor on its way, and what a session has done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gradwire._result import Result
    from gradwire._shared_memory import Bytes
    from gradwire_proto.v1 import tensor_pb2


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session has done since it connected."""

    rounds: int
    """Collectives that have ended."""
    bytes_in: int
    """Bytes of the tensors handed in."""
    seconds_waiting: float
    """Sum over the collectives of the time from submission to result; they may overlap."""


@dataclass(slots=True, eq=False)
class Collective:
    """One tensor on its way."""

    sequence: int
    data: Bytes
    finish: Callable[[], torch.Tensor]
    spec: tensor_pb2.Spec
    weight: float
    future: Result
    since: float = field(default_factory=time.monotonic)
