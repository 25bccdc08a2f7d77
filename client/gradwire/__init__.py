"""Gradwire: gradient aggregation for PyTorch DistributedDataParallel.

session = gradwire.connect()
model.register_comm_hook(session, gradwire.allreduce_hook)
"""

from __future__ import annotations

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
    )
    from gradwire._hook import allreduce_hook
    from gradwire._session import Session

__all__ = [
    "AggregationError",
    "ConnectError",
    "GradwireError",
    "LostError",
    "MismatchError",
    "RoundTimeoutError",
    "Session",
    "SessionStats",
    "allreduce_hook",
    "connect",
]

_HOMES = {
    "connect": "_connect",
    "allreduce_hook": "_hook",
    "Session": "_session",
    "SessionStats": "_collective",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: gRPC and torch cost seconds of start-up."""
    if name not in __all__:
        raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
    return getattr(import_module(f"gradwire.{_HOMES.get(name, '_errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
