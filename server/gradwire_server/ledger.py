"""What is under way of the letters from one rank to another, and whether more may be. Pure.

Every daemon that a note passes keeps these books: they bound what a sender, or a receiver, can
make it hold for one that reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gradwire_proto.letters import (
    MOST_LETTERS,
    MOST_SMALL_BYTES,
    PAGES,
    SMALL_BYTES,
    page_bytes,
)
from gradwire_server.errors import ProtocolError

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb

LONGEST_NOTE = 4096
"""Bytes of a note without its payload."""

Pair: TypeAlias = tuple[int, int]
"""Who sends the letter, and who receives it."""


def pair_of(note: pb.Note) -> Pair:
    """Whose letter a note is about. Raises ProtocolError where it is about none."""
    match note.WhichOneof("kind"):
        case "offer" | "page" | "withdrawal":
            return note.source, note.target
        case "receipt" | "refusal":
            return note.target, note.source
        case kind:
            raise ProtocolError(f"expected a note of a letter, got one of kind {kind}")


@dataclass(slots=True)
class _Letter:
    """One that is under way; all in bytes."""

    size: int
    small: int
    """What came with the offer."""
    sent: int
    received: int = 0
    wanted: bool = False


class _Account:
    """The letters from one rank to one other."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._window = PAGES * page_bytes(chunk_bytes)
        self._offered = 0
        self._open: dict[int, _Letter] = {}
        self._small_bytes = 0
        self._flying_bytes = 0

    def offer(self, note: pb.Note, size: int) -> None:
        if note.number != self._offered + 1:
            raise ProtocolError(f"expected letter {self._offered + 1}, got {note.number}")
        if size not in (0, note.offer.size) or size > SMALL_BYTES:
            raise ProtocolError(
                f"expected none of {note.offer.size} bytes with an offer, or all where that is"
                f" {SMALL_BYTES} at most, got {size}"
            )
        if len(self._open) == MOST_LETTERS or self._small_bytes + size > MOST_SMALL_BYTES:
            raise ProtocolError(
                f"expected {MOST_LETTERS} letters at most that were not taken, with"
                f" {MOST_SMALL_BYTES} bytes, got more"
            )
        self._offered += 1
        self._small_bytes += size
        self._open[note.number] = _Letter(note.offer.size, size, size)

    def page(self, note: pb.Note, size: int) -> bool:
        letter = self._find(note.number)
        if letter is None:
            return False
        place, most = note.page.offset, min(self._chunk_bytes, letter.size - letter.sent)
        if not letter.wanted or place != letter.sent or not 0 < size <= most:
            raise ProtocolError(
                f"expected 1 to {most} bytes from {letter.sent} on of a letter that is wanted,"
                f" got {size} from {place} on"
            )
        if self._flying_bytes + size > self._window:
            raise ProtocolError(f"expected {self._window} bytes under way at most, got more")
        letter.sent += size
        self._flying_bytes += size
        return True

    def receipt(self, note: pb.Note) -> bool:
        letter = self._find(note.number)
        if letter is None:
            return False
        size = note.receipt.size
        again = letter.wanted and size == letter.received
        if again or not letter.received <= size <= letter.sent:
            raise ProtocolError(
                f"expected a receipt for {letter.received} to {letter.sent} bytes, got {size}"
            )
        if not letter.small:
            self._flying_bytes -= size - letter.received
        letter.received, letter.wanted = size, True
        if size == letter.size:
            self._close(note.number)
        return True

    def end(self, number: int) -> bool:
        if self._find(number) is None:
            return False
        self._close(number)
        return True

    def _find(self, number: int) -> _Letter | None:
        """A letter that is under way; None for one that no longer is."""
        if not 0 < number <= self._offered:
            raise ProtocolError(f"expected a letter of 1 to {self._offered}, got {number}")
        return self._open.get(number)

    def _close(self, number: int) -> None:
        letter = self._open.pop(number)
        self._small_bytes -= letter.small
        if not letter.small:
            self._flying_bytes -= letter.sent - letter.received


class Ledger:
    """The accounts of all pairs of ranks whose notes pass a daemon."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._accounts: dict[Pair, _Account] = {}

    def enter(self, note: pb.Note, size: int) -> bool:
        """Whether to hand a note on, with a payload of so many bytes.

        It is of no use to anybody where its letter ended before. Raises ProtocolError, and
        changes nothing, where it breaks the rules.
        """
        pair, kind = pair_of(note), note.WhichOneof("kind")
        if size and kind not in ("offer", "page"):
            raise ProtocolError(f"expected a {kind} without a payload, got {size} bytes")
        if (length := note.ByteSize()) > LONGEST_NOTE:
            raise ProtocolError(f"expected a note of {LONGEST_NOTE} bytes, got {length}")
        account = self._accounts.get(pair) or _Account(self._chunk_bytes)
        entered = self._enter(account, note, size)
        self._accounts[pair] = account
        return entered

    def _enter(self, account: _Account, note: pb.Note, size: int) -> bool:
        match note.WhichOneof("kind"):
            case "offer":
                account.offer(note, size)
                return True
            case "page":
                return account.page(note, size)
            case "receipt":
                return account.receipt(note)
            case _:
                return account.end(note.number)

    def depart(self, rank: int) -> None:
        """Nothing of this rank's letters matters any more."""
        self._accounts = {
            pair: account for pair, account in self._accounts.items() if rank not in pair
        }
