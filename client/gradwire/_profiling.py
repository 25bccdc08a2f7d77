"""What torch.profiler shows of a session: nothing is done while no profiler looks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_NOTHING: AbstractContextManager[Any] = nullcontext()


def span(name: str, *values: object) -> AbstractContextManager[Any]:
    """A block with a name of its own in the profile of the thread that runs it."""
    # record_function takes microseconds even where nobody looks; this a fraction of one.
    if not torch.autograd._profiler_enabled():  # noqa: SLF001 - torch's own check
        return _NOTHING
    return torch.profiler.record_function("gradwire::" + name.format(*values))
