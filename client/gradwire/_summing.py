"""What a local rank does in the memory of a ticket: it adds its part, and reads the result."""

from __future__ import annotations

from ctypes import memmove, memset
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_proto.arithmetic import blocks
from gradwire_proto.chunks import overlap
from gradwire_proto.nonfinite import NOBODY, Finding, first_nonfinite

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire._collective import Collective
    from gradwire._plan import Plan
    from gradwire._shared_memory import Arena
    from gradwire_proto.diary import HandedIn


@dataclass(slots=True, eq=False)
class Work:
    """A collective on its way along the chain."""

    collective: Collective
    sequence: int
    plan: Plan
    address: int
    """Of its elements; the collective keeps them there."""
    target: int
    """Where the result's first element would go: what is taken goes as far behind it."""
    handed_in: HandedIn
    added: int = 0
    failed: bool = False
    disagreed: bool = False


class Summing:
    """Of one rank, all its tickets."""

    def __init__(
        self, arena: Arena, number: int, weightless: Callable[[int], None], *, alone: bool
    ) -> None:
        """`number`: of the rank in the job. `weightless` is told of a collective of which a
        chunk has no result, since nobody brought any weight.
        """
        self._arena = arena
        self._control = arena.control
        self._rank = arena.local_rank
        self._number = number
        self._weightless = weightless
        self._last = alone and self._rank == arena.layout.ranks - 1
        """What is passed on by this rank is the result."""

    def put(self, number: int, work: Work, chunk: int) -> None:
        """Add this rank's part; the last rank of a lone node finishes the chunk, too."""
        arithmetic, order = work.plan.arithmetic, work.collective.order
        weight = order.weight
        start, stop = work.plan.cut.range(chunk)
        weights = self._control.weight(number, weight)
        total = self._arena.total(number, arithmetic)
        finishing = self._last and self._has_result(number, work, weights)
        result = self._arena.result(number, arithmetic) if finishing else None
        inspecting = work.plan.inspects and arithmetic.counts(weight)
        bad: int | None = None
        for at, end in blocks(stop - start, cached=finishing or inspecting):
            part = order.flat[start + at : start + end]
            if inspecting and (own := first_nonfinite(part)) is not None:
                self._control.note(number, Finding(self._number, at + own))
                inspecting = False
            if self._rank == 0:
                arithmetic.begin(total[at:end], part, weight)
            else:
                arithmetic.add(total[at:end], part, weight)
            if result is not None:
                arithmetic.finish(total[at:end], result[at:end], weights)
                if work.plan.looks and bad is None:
                    bad = first_nonfinite(result[at:end], at)
        if bad is not None:
            self._control.flag(number, self._control.noted(number) or Finding(NOBODY, bad))

    def _has_result(self, number: int, work: Work, weights: float) -> bool:
        """Whether the chunk can be finished; if not, the daemon hears of it, and tells all."""
        if work.plan.arithmetic.has_result(weights):
            return True
        # Nobody may read it before that.
        self._control.spoil(number)
        self._weightless(work.sequence)
        return False

    def bring(self, number: int, work: Work, chunk: int) -> None:
        """Copy in what this rank brings of a chunk; its weight is the bytes in it."""
        start, stop = work.plan.cut.range(chunk)
        first, end = overlap((start, stop), work.collective.order.brings)
        brought = end - first
        clearing = self._last
        if not brought and not clearing:
            return
        slot = self._arena.result_address(number, work.plan.arithmetic)
        if not self._control.weight(number):
            memset(slot, 0, first - start)
            memset(slot + end - start, 0, stop - end)
        if brought:
            memmove(slot + first - start, work.address + first, brought)
            self._control.weight(number, float(brought))

    def take(self, number: int, work: Work, chunk: int) -> None:
        """Copy out what this rank takes of a chunk's result."""
        arithmetic, extent = work.plan.arithmetic, work.plan.cut.range(chunk)
        size = arithmetic.dtype.itemsize
        slot = self._arena.result_address(number, arithmetic)
        for part in work.collective.order.takes:
            first, end = overlap(extent, part)
            if first < end:
                source = slot + (first - extent[0]) * size
                memmove(work.target + first * size, source, (end - first) * size)
