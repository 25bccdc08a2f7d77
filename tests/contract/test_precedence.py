"""What is urgent goes first, and the rest goes on."""

from __future__ import annotations

import asyncio

import pytest

from gradwire_server.transport import precedence
from gradwire_server.transport.precedence import Precedence, Standing


@pytest.fixture
def standings() -> tuple[Standing, Standing]:
    one = Precedence()
    return one.standing(urgent=True), one.standing(urgent=False)


async def waits(standing: Standing, seconds: float = 0.01) -> bool:
    """Whether its next frame has to wait so long."""
    try:
        async with asyncio.timeout(seconds):
            await standing.turn()
    except TimeoutError:
        return True
    return False


def test_nobody_waits_for_nothing(standings: tuple[Standing, Standing]) -> None:
    async def main() -> None:
        urgent, ordinary = standings
        assert not await waits(ordinary)
        urgent.begin()
        urgent.end()
        assert not await waits(ordinary)

    asyncio.run(main())


def test_an_urgent_round_goes_first_and_never_waits(
    standings: tuple[Standing, Standing],
) -> None:
    async def main() -> None:
        urgent, ordinary = standings
        urgent.begin()
        ordinary.begin()
        assert await waits(ordinary)
        assert not await waits(urgent)

    asyncio.run(main())


def test_who_waits_goes_as_soon_as_the_last_urgent_round_has_ended(
    standings: tuple[Standing, Standing],
) -> None:
    async def main() -> None:
        urgent, ordinary = standings
        urgent.begin()
        urgent.begin()
        turn = asyncio.create_task(ordinary.turn())
        await asyncio.sleep(0)
        urgent.end()
        await asyncio.sleep(0.01)
        assert not turn.done()
        urgent.end()
        await asyncio.wait_for(turn, 0.05)

    asyncio.run(main())


def test_a_round_that_moves_nothing_holds_nobody_up(
    standings: tuple[Standing, Standing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(precedence, "QUIET_SECONDS", 0.02)

    async def main() -> None:
        urgent, ordinary = standings
        urgent.begin()
        assert await waits(ordinary)
        assert not await waits(ordinary, 5.0)
        urgent.moved()
        assert await waits(ordinary)

    asyncio.run(main())


def test_nothing_starves_however_much_is_urgent(
    standings: tuple[Standing, Standing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "PATIENCE_SECONDS", 0.03)
    monkeypatch.setattr(precedence, "QUIET_SECONDS", 60.0)

    async def main() -> None:
        urgent, ordinary = standings
        urgent.begin()
        assert await waits(ordinary)
        assert not await waits(ordinary, 5.0)

    asyncio.run(main())
