"""What an engine says of its rounds when a generation is taken up again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire_server.errors import LostError
from gradwire_server.round import Key
from gradwire_server.testing import run
from gradwire_server.testing_job import job

if TYPE_CHECKING:
    from gradwire_server.transport.base import Message


class Told:
    """Of a transport, what settles."""

    def __init__(self) -> None:
        self.settled: list[Key] = []

    async def send(self, target: int, message: Message) -> None:
        """See transport.base.Transport."""

    def settle(self, before: Key) -> None:
        """See transport.base.Transport."""
        self.settled.append(before)

    async def close(self) -> None:
        """See transport.base.Transport."""


@pytest.mark.parametrize(("fails", "settled"), [(True, [Key(0, 1)]), (False, [])])
def test_what_is_interrupted_is_not_settled_though_what_failed_is(
    fails: bool, settled: list[Key]
) -> None:
    """Another node may have its result, which nobody keeps once all have settled it."""

    async def main() -> None:
        async with job(1, 1) as made:
            engine, told = made.engines[0], Told()
            engine.settling.connect(told)
            made.bring(0, 0, torch.ones(5))
            await asyncio.sleep(0.1)
            if fails:
                engine.fail_round(0, LostError("it is late"))
            else:
                engine.suspend()
            await asyncio.sleep(0.1)
            assert told.settled == settled

    run(main())
