"""The books that a daemon keeps of letters from rank 0 to rank 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.ledger import Ledger
from scenes.script import Scene, command

if TYPE_CHECKING:
    from collections.abc import Iterator


@command(r"letters in pages of (\d+) bytes")
class Ledgers(Scene):
    """Each note is handed on, or dropped, or breaks the rules."""

    def __init__(self, page_bytes: int) -> None:
        self._ledger = Ledger(page_bytes)

    @command(r"0 offers (\d+): (\d+) bytes, (\d+) along with it")
    def offer(self, number: int, size: int, along: int) -> Iterator[str]:
        return self._enter(number, along, offer=pb.Offer(size=size))

    @command(r"0 sends of (\d+), at (\d+): (\d+) bytes")
    def page(self, number: int, offset: int, size: int) -> Iterator[str]:
        return self._enter(number, size, page=pb.Page(offset=offset))

    @command(r"0 withdraws (\d+)")
    def withdraw(self, number: int) -> Iterator[str]:
        return self._enter(number, 0, withdrawal=pb.Withdrawal())

    @command(r"1 has (\d+) bytes of (\d+)")
    def receive(self, size: int, number: int) -> Iterator[str]:
        return self._enter(number, 0, receipt=pb.Receipt(size=size))

    @command(r"1 refuses (\d+)")
    def refuse(self, number: int) -> Iterator[str]:
        return self._enter(number, 0, refusal=pb.Refusal())

    @command(r"rank (\d+) leaves")
    def leave(self, rank: int) -> Iterator[str]:
        self._ledger.depart(rank)
        yield "its letters are forgotten"

    def _enter(self, number: int, size: int, **kind: Any) -> Iterator[str]:  # noqa: ANN401
        back = kind.keys() & {"receipt", "refusal"}
        source, target = (1, 0) if back else (0, 1)
        note = pb.Note(source=source, target=target, number=number, **kind)
        yield "handed on" if self._ledger.enter(note, size) else "dropped"
