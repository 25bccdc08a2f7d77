"""Keeps torch.compile from compiling us.

C++ code calls methods of groups and works while a compiled model runs, DDP's reducer for one,
and torch then takes what it sees for a part of the model. torch.compiler.disable would do, but
loads the compiler, which takes seconds.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

Class = TypeVar("Class", bound=type)


def uncompiled(cls: Class) -> Class:
    """All methods of this class, and of those of ours below it, are run as they stand."""
    for base in cls.__mro__:
        if base.__module__.startswith("gradwire"):
            for value in vars(base).values():
                function = value.fget if isinstance(value, property) else value
                while function is not None:
                    if hasattr(function, "__code__"):
                        _pass_over(function.__code__)
                    function = getattr(function, "__wrapped__", None)
    return cls


def _pass_over(code: object) -> None:
    """Neither this nor what it calls is compiled, as far as this version of torch can do so."""
    frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001 - torch has no other
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP  # noqa: SLF001 - as above
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)
