"""Slots of ranks that share no memory: the oldest round always gets one."""

from __future__ import annotations

import asyncio

from gradwire_server.local import PrivateSlots
from gradwire_server.testing import run


def test_who_asks_later_does_not_overtake_who_waits() -> None:
    """Else all slots could go to rounds that are kept until the one that waits has settled."""

    async def main() -> list[bool]:
        slots = PrivateSlots(1, 64)
        first = slots.ask()
        second = slots.ask()
        slots.give_back(first)
        third = slots.ask()
        return [second.done(), third.done()]

    assert run(main()) == [True, False]


def test_a_round_that_is_called_off_keeps_no_slot_and_no_place_in_the_line() -> None:
    async def main() -> list[bool]:
        slots = PrivateSlots(1, 64)
        first, second, third, fourth = (slots.ask() for _ in range(4))
        slots.give_back(second)
        slots.give_back(first)
        before = [third.done(), fourth.done()]
        slots.give_back(third)
        await asyncio.sleep(0)
        return [*before, fourth.done()]

    assert run(main()) == [True, False, True]
