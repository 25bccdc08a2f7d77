"""How the pieces of shares that arrive on several lanes become parts again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

from gradwire_server.errors import ProtocolError
from gradwire_server.transport.stripes import ALIGNMENT, MOST_PIECES, WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_server.transport.base import Part


@dataclass(frozen=True, slots=True)
class Opening:
    """A share, with its first piece: all, for most."""

    number: int
    after: int
    size: int
    part: Part
    settled: tuple[int, int] = (0, 0)
    """What the sender says of itself beside: sequence and chunk."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A further piece of a share."""

    number: int
    offset: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Skip:
    """The rest of a share will not come."""

    number: int


@dataclass(slots=True)
class _Assembly:
    """What has come of one share."""

    opening: Opening | None = None
    pieces: dict[int, memoryview] = field(default_factory=dict)
    received: int = 0


class Assembler:
    """Puts the shares of a link together, on the side that receives them.

    Holds no more of a share than a share may have, and no more than WINDOW of them.
    """

    def __init__(
        self, most_bytes: int, own_seconds: Callable[[int], float | None] = lambda _: None
    ) -> None:
        """`own_seconds`: a time of the sender's clock in this node's, if that is known."""
        self._most = most_bytes
        self._own_seconds = own_seconds
        self._now = 0.0
        self._open: dict[int, _Assembly] = {}
        self._whole: dict[int, Part] = {}
        """Parts that are complete, while the one that goes before them is not."""
        self._following: dict[int, int] = {}
        """Which of these comes after which number."""
        self._oldest = 1
        """All numbers below have been settled."""
        self._settled: set[int] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes of shares that are not complete."""
        return sum(each.received for each in self._open.values())

    def take(self, arrived: Opening | Piece | Skip, now: float = 0.0) -> list[Part]:
        """The parts whose turn has now come; ProtocolError where the peer breaks the rules."""
        self._now = now
        match arrived:
            case Opening():
                return self._begin(arrived)
            case Piece():
                return self._add(arrived)
            case Skip():
                return self._skip(arrived)
            case _:
                assert_never(arrived)

    def _begin(self, opening: Opening) -> list[Part]:
        size, first = opening.size, opening.part.size
        if not first <= size <= self._most or (size and not first):
            raise ProtocolError(
                f"a share of {size} bytes, of which {first} came first; expected at most"
                f" {self._most}"
            )
        if opening.after >= opening.number:
            raise ProtocolError(f"share {opening.number} comes after {opening.after}")
        assembly = self._find(opening.number)
        if assembly is None:
            return []
        if assembly.opening is not None:
            raise ProtocolError(f"share {opening.number} came twice")
        assembly.opening = opening
        return self._take(opening.number, assembly, 0, opening.part.pieces[0])

    def _add(self, piece: Piece) -> list[Part]:
        if piece.offset <= 0 or piece.offset % ALIGNMENT or not piece.payload.nbytes:
            raise ProtocolError(f"a piece of {piece.payload.nbytes} bytes at {piece.offset}")
        assembly = self._find(piece.number)
        if assembly is None:
            return []
        return self._take(piece.number, assembly, piece.offset, piece.payload)

    def _skip(self, skip: Skip) -> list[Part]:
        if self._find(skip.number) is None:
            raise ProtocolError(f"share {skip.number} came whole, and is called off")
        del self._open[skip.number]
        return self._settle(skip.number)

    def _find(self, number: int) -> _Assembly | None:
        """What there is of a share; None where it is settled."""
        if not 0 < number < self._oldest + WINDOW:
            raise ProtocolError(f"share {number}, while share {self._oldest} has not come")
        if self._is_settled(number) or number in self._whole:
            return None
        return self._open.setdefault(number, _Assembly())

    def _take(
        self, number: int, assembly: _Assembly, offset: int, payload: memoryview
    ) -> list[Part]:
        size = assembly.opening.size if assembly.opening is not None else self._most
        if offset in assembly.pieces or len(assembly.pieces) >= MOST_PIECES:
            raise ProtocolError(f"the piece of share {number} at {offset} is one too many")
        assembly.pieces[offset] = payload
        assembly.received += payload.nbytes
        if assembly.received > size or offset + payload.nbytes > size:
            raise ProtocolError(f"share {number} has over {size} bytes")
        if assembly.opening is None or assembly.received < size:
            return []
        return self._complete(assembly.opening, assembly)

    def _complete(self, opening: Opening, assembly: _Assembly) -> list[Part]:
        pieces = sorted(assembly.pieces.items())
        end = 0
        for offset, payload in pieces:
            if offset != end:
                raise ProtocolError(f"share {opening.number} has a hole or a knot at {end}")
            end += payload.nbytes
        part = replace(
            opening.part,
            pieces=tuple(payload for _, payload in pieces),
            left_at=self._own_seconds(opening.part.sent_ns),
            came_at=self._now,
        )
        del self._open[opening.number]
        self._whole[opening.number] = part
        if not opening.after or self._is_settled(opening.after):
            return self._settle(opening.number)
        if opening.after in self._following:
            raise ProtocolError(f"two shares come after share {opening.after}")
        self._following[opening.after] = opening.number
        return []

    def _is_settled(self, number: int) -> bool:
        return number < self._oldest or number in self._settled

    def _settle(self, number: int) -> list[Part]:
        parts = []
        following: int | None = number
        while following is not None:
            if (part := self._whole.pop(following, None)) is not None:
                parts.append(part)
            self._settled.add(following)
            following = self._following.pop(following, None)
        while self._oldest in self._settled:
            self._settled.remove(self._oldest)
            self._oldest += 1
        return parts
