"""The books of one node: who has brought what, and which collectives have failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_proto.dtypes import BY_NAME, OPS
from gradwire_server.errors import LateError
from gradwire_server.round import Contribution, Key, Round, Rounds, Spec
from scenes.script import Scene, command, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 64
TENSOR = r"(\w+ of \d+ x \w+)"


def spec_of(text: str) -> Spec:
    """What "mean of 5 x float32" is."""
    op, _, elements, _, dtype = text.split()
    return Spec(OPS[op], BY_NAME[dtype], int(elements), 0)


@command(r"a node with ranks? ([\d, ]+)")
class RoundsOfANode(Scene):
    """Chunks have 64 bytes. A round is written as the collective's number and the chunk's."""

    def __init__(self, ranks: str | int) -> None:
        self._rounds: Rounds[str] = Rounds(numbers(ranks))

    @command(rf"rank (\d+) brings (\d+)\.(\d+): {TENSOR}")
    def bring(self, rank: int, sequence: int, chunk: int, tensor: str) -> Iterator[str]:
        key, brought = Key(sequence, chunk), Contribution(spec_of(tensor), 1.0)
        extent = brought.extent(f"rank {rank}", chunk, CHUNK_BYTES)
        self._rounds.advance(rank, key, final=extent.final)
        if (error := self._rounds.failure(sequence)) is not None:
            yield f"rank {rank} hears of round {sequence}: {error}"
        elif (found := self._rounds.get(key, 0.0)) is None:
            yield "its time is past"
        else:
            found.contribute(rank, brought)
            yield self._state(found)

    @command(rf"node (\d+) sends of (\d+)\.(\d+): {TENSOR}")
    def arrive(self, node: int, sequence: int, chunk: int, tensor: str) -> Iterator[str]:
        found = self._rounds.get(Key(sequence, chunk), 0.0)
        if found is None:
            yield "its time is past: dropped"
        else:
            found.arrive(f"node {node}", spec_of(tensor), tensor)
            yield f"{self._state(found)}; {len(found.arrived)} kept of other nodes"

    @command(r"(\d+)\.(\d+) has its result")
    def close_round(self, sequence: int, chunk: int) -> Iterator[str]:
        self._rounds.close(Key(sequence, chunk))
        yield from self.opened()

    @command(r"(\d+) fails: (.+)")
    def fail(self, sequence: int, why: str) -> Iterator[str]:
        dropped = self._rounds.fail(sequence, LateError(why))
        if dropped is None:
            yield f"{sequence} had failed before: {self._rounds.failure(sequence)}"
            return
        names = ", ".join(f"{each.key.sequence}.{each.key.chunk}" for each in dropped)
        yield f"dropped: {names or 'nothing'}; waiting ranks: {self._rounds.begun(sequence)}"

    @command(r"what is open\?")
    def opened(self) -> Iterator[str]:
        names = sorted(each.key for each in self._rounds.open)
        yield f"open: {', '.join(f'{key.sequence}.{key.chunk}' for key in names) or 'nothing'}"

    @command(r"how many has rank (\d+) brought\?")
    def count(self, rank: int) -> Iterator[str]:
        yield f"{self._rounds.sequences(rank)} collectives"

    def _state(self, found: Round[str]) -> str:
        name = f"{found.key.sequence}.{found.key.chunk}"
        if found.missing:
            return f"{name} waits for ranks {', '.join(map(str, found.missing))}"
        return f"{name} is complete here"
