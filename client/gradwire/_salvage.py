"""Results that still lie in an arena whose daemon is gone, or done with it."""

from __future__ import annotations

import contextlib
from ctypes import string_at
from typing import TYPE_CHECKING

from gradwire._results import Saved
from gradwire_proto.v1 import tensor_pb2

if TYPE_CHECKING:
    from gradwire._plan import Plans
    from gradwire._shared_memory import Arena


def salvage(arena: Arena, plans: Plans, tickets: range) -> dict[tuple[int, int], Saved]:
    """Copies of the results of these tickets, by sequence and chunk.

    Where a slot is in use again, all ranks have what was there: that one is left out.
    """
    found = {}
    for number in tickets:
        with contextlib.suppress(ValueError):
            ticket = arena.control.ticket(number)
            plan = plans.of_spec(tensor_pb2.Spec.FromString(ticket.spec))
            start, stop = plan.cut.range(ticket.chunk)
            place = arena.result_address(number, plan.arithmetic)
            data = string_at(place, (stop - start) * plan.arithmetic.dtype.itemsize)
            saved = Saved(data, arena.control.finding(number), plan.chunks)
            # Only now: it may have been taken into use meanwhile.
            if not arena.control.is_void(number) and arena.control.ticket(number) == ticket:
                found[ticket.sequence, ticket.chunk] = saved
    return found
