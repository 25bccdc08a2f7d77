"""A generation with much to do does not keep one with little waiting."""

from __future__ import annotations

import asyncio

import pytest

from gradwire_server.transport.turns import Turns


async def piece(turns: Turns, who: str, done: list[str]) -> None:
    await turns.take(who)
    done.append(who)


def test_each_generation_has_its_turn_however_many_pieces_one_has() -> None:
    async def run() -> list[str]:
        turns, done = Turns(), list[str]()
        for who in "ab":
            turns.begin(who)
        pieces = [asyncio.create_task(piece(turns, who, done)) for who in "aaaaaabb"]
        await asyncio.gather(*pieces)
        return done

    assert "".join(asyncio.run(run())) == "ababaaaa"


def test_who_is_alone_does_not_wait() -> None:
    async def run() -> list[str]:
        turns, done = Turns(), list[str]()
        turns.begin("a")
        turns.begin("b")
        turns.end("b")
        with pytest.raises(StopIteration):
            # It is over without having waited for anything.
            piece(turns, "a", done).send(None)
        return done

    assert asyncio.run(run()) == ["a"]


def test_who_is_called_off_is_passed_over() -> None:
    async def run() -> list[str]:
        turns, done = Turns(), list[str]()
        for who in "ab":
            turns.begin(who)
        first, *others = [
            asyncio.create_task(piece(turns, who, done)) for who in ("a", "a", "b")
        ]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
        turns.end("a")
        turns.end("b")
        await piece(turns, "a", done)
        return done

    assert sorted(asyncio.run(run())) == ["a", "a", "b"]
