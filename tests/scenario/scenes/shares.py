"""How pieces of shares become parts, on the side of a link that receives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_proto.v1 import peer_pb2
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.round import Key, Spec
from gradwire_server.transport.assembly import Assembler, Opening, Piece, Skip
from gradwire_server.transport.base import Part
from scenes.script import Scene, command

if TYPE_CHECKING:
    from collections.abc import Iterator


@command(r"a link with shares of (\d+) bytes at most")
class Shares(Scene):
    """A share is named by its number, and by that of the one before it in its round."""

    def __init__(self, most: int) -> None:
        self._assembler = Assembler(most)

    @command(r"share (\d+), after (\d+): (\d+) of (\d+) bytes")
    def open(self, number: int, after: int, first: int, size: int) -> Iterator[str]:
        spec = Spec(pb.OP_SUM, pb.DTYPE_INT8, size, 0)
        ring, payload = peer_pb2.SCHEDULE_RING, (memoryview(bytes(first)),)
        part = Part(Key(0, 0), ring, number, 0, 1.0, spec, payload)
        return self._take(Opening(number, after, size, part))

    @command(r"piece of (\d+), at (\d+): (\d+) bytes")
    def add(self, number: int, offset: int, size: int) -> Iterator[str]:
        return self._take(Piece(number, offset, memoryview(bytes(size))))

    @command(r"the rest of (\d+) will not come")
    def skip(self, number: int) -> Iterator[str]:
        return self._take(Skip(number))

    def _take(self, arrived: Opening | Piece | Skip) -> Iterator[str]:
        for part in self._assembler.take(arrived):
            # Which share it is stands in its step: see `open`.
            yield f"share {part.step} is whole: {part.size} bytes"
        yield f"{self._assembler.held_bytes} bytes are held"
