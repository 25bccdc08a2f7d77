"""Gradwire: gradient aggregation for PyTorch DistributedDataParallel.

session = gradwire.connect()
model.register_comm_hook(session, gradwire.allreduce_hook)

or, without any of it, torch.distributed.init_process_group("grpc").
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire._collective import SessionStats
    from gradwire._connect import connect
    from gradwire._errors import (
        AggregationError,
        ConnectError,
        GradwireError,
        LostError,
        MismatchError,
        RoundTimeoutError,
        ZeroWeightError,
    )
    from gradwire._hook import allreduce_hook
    from gradwire._low_rank import low_rank
    from gradwire._monitored_barrier import monitored_barrier
    from gradwire._session import Session
    from gradwire._weighted_mean import weighted_mean
    from gradwire._wire import Wire
    from gradwire._wires import Parameter

__all__ = [
    "AggregationError",
    "ConnectError",
    "GradwireError",
    "LostError",
    "MismatchError",
    "Parameter",
    "RoundTimeoutError",
    "Session",
    "SessionStats",
    "Wire",
    "ZeroWeightError",
    "allreduce_hook",
    "connect",
    "low_rank",
    "monitored_barrier",
    "weighted_mean",
]

_HOMES = {
    "connect": "_connect",
    "allreduce_hook": "_hook",
    "low_rank": "_low_rank",
    "monitored_barrier": "_monitored_barrier",
    "weighted_mean": "_weighted_mean",
    "Session": "_session",
    "SessionStats": "_collective",
    "Wire": "_wire",
    "Parameter": "_wires",
}


if "torch" in sys.modules or os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
    # Else torch calls it, when it is imported.
    import_module("gradwire_backend").register()


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: gRPC and torch cost seconds of start-up."""
    if name not in __all__:
        raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
    return getattr(import_module(f"gradwire.{_HOMES.get(name, '_errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
