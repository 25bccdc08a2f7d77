"""The steps of a training, as the hook sees them: which bucket is of which, which to skip."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch.distributed as dist

    from gradwire._tensor import Shape


@dataclass(frozen=True, eq=False, slots=True)
class Origin:
    """One bucket of one step."""

    step: int
    index: int
    parameters: Sequence[torch.Tensor]
    last: bool

    def __str__(self) -> str:
        return f"bucket {self.index} of step {self.step}"

    @property
    def shapes(self) -> list[Shape]:
        """Of the parameters, in the bucket's order."""
        return [tuple(each.shape) for each in self.parameters]

    def find(self, element: int) -> tuple[torch.Tensor, int] | None:
        """Which parameter an element of the bucket belongs to, and which of its own it is."""
        for parameter in self.parameters:
            width = 2 if parameter.is_complex() else 1
            if element < parameter.numel() * width:
                return parameter, element // width
            element -= parameter.numel() * width
        return None


NO_PASS = -1
"""No backward pass: within DDP's join() a rank that has run out stands in for the others,
bucket by bucket, from the first to the last."""


def backward_pass() -> int:
    """Number of the backward pass that calls; NO_PASS outside of one."""
    # What torch.utils.checkpoint tells passes apart by, in every release that is supported.
    number: int = torch._C._current_graph_task_id()  # noqa: SLF001
    return number


class Steps:
    """Counts steps: backward passes that reduce something, be it for one model or several.

    Buckets come on the threads of autograd, what is to be skipped on others.
    """

    def __init__(self) -> None:
        self.number: int = 0
        """Of the step under way; 0 before the first."""
        self.skipped: int = 0
        """Steps that were to be skipped."""
        self.skipping: bool = False
        """The step under way is."""
        self._ended = True
        self._pass = NO_PASS
        self._lock = threading.Lock()
        self._reduced: list[weakref.ref[torch.Tensor]] = []
        self._void: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """Parameters whose gradients are of a step that is to be skipped."""

    def enter(self, bucket: dist.GradBucket) -> Origin:
        """The hook has been handed this bucket."""
        parameters, current = bucket.parameters(), backward_pass()
        with self._lock:
            if current != self._pass or (current == NO_PASS and self._ended):
                self._begin()
            self._ended, self._pass = bucket.is_last(), current
            self._reduced += [weakref.ref(each) for each in parameters]
            for parameter in parameters if self._void else ():
                self._void.pop(parameter, None)
            if self.skipping:
                self._avoid()
            return Origin(self.number, bucket.index(), parameters, bucket.is_last())

    def _begin(self) -> None:
        self.number += 1
        self.skipping = False
        self._reduced.clear()

    def skip(self, step: int) -> None:
        """This step is not to change the parameters."""
        with self._lock:
            if step != self.number:
                return
            self.skipped += not self.skipping
            self.skipping = True
            self._avoid()

    def _avoid(self) -> None:
        for reference in self._reduced:
            if (parameter := reference()) is not None:
                self._void[parameter] = True

    def before_step(
        self,
        optimizer: torch.optim.Optimizer,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before an optimizer's step: what is to be skipped has no gradient, nor has it one
        after a closure, which makes gradients only within the step.
        """
        self._drop_gradients(optimizer)
        # The first is the optimizer itself.
        closure = args[1] if len(args) > 1 else keywords.get("closure")
        if closure is None:
            return args, keywords

        def guarded() -> object:
            loss = closure()
            self._drop_gradients(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], guarded, *args[2:]), keywords
        return args, {**keywords, "closure": guarded}

    def _drop_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        with self._lock:
            if not self._void:
                return
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if self._void.pop(parameter, None):
                        parameter.grad = None
