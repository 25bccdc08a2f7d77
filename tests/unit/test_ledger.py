from __future__ import annotations

from typing import Any

import pytest

from gradwire_proto.letters import MOST_LETTERS, MOST_SMALL_BYTES, PAGES, SMALL_BYTES
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.ledger import LONGEST_NOTE, Ledger, pair_of

CHUNK = 4096
SIZE = 10 * CHUNK


def out(number: int, **kind: Any) -> pb.Note:  # noqa: ANN401 - messages
    """From the sender, rank 0, to the receiver."""
    return pb.Note(source=0, target=1, number=number, **kind)


def back(number: int, **kind: Any) -> pb.Note:  # noqa: ANN401 - messages
    return pb.Note(source=1, target=0, number=number, **kind)


def offer(number: int, size: int = SIZE) -> pb.Note:
    return out(number, offer=pb.Offer(size=size))


def page(number: int, offset: int) -> pb.Note:
    return out(number, page=pb.Page(offset=offset))


def receipt(number: int, size: int) -> pb.Note:
    return back(number, receipt=pb.Receipt(size=size))


def begun() -> Ledger:
    """One letter that is wanted."""
    ledger = Ledger(CHUNK)
    assert ledger.enter(offer(1), 0)
    assert ledger.enter(receipt(1, 0), 0)
    return ledger


def test_a_letter_is_carried_to_its_end_and_then_forgotten() -> None:
    ledger = begun()
    for offset in range(0, SIZE, CHUNK):
        assert ledger.enter(page(1, offset), CHUNK)
        assert ledger.enter(receipt(1, offset + CHUNK), 0)
    assert not ledger.enter(page(1, 0), CHUNK)
    assert not ledger.enter(receipt(1, SIZE), 0)
    assert not ledger.enter(back(1, refusal=pb.Refusal()), 0)
    assert ledger.enter(offer(2, 3), 3)


def test_both_may_end_a_letter_and_what_crosses_that_is_dropped() -> None:
    ledger = begun()
    assert ledger.enter(page(1, 0), CHUNK)
    assert ledger.enter(back(1, refusal=pb.Refusal()), 0)
    assert not ledger.enter(page(1, CHUNK), CHUNK)
    assert ledger.enter(offer(2), 0)
    assert ledger.enter(out(2, withdrawal=pb.Withdrawal()), 0)
    assert not ledger.enter(receipt(2, 0), 0)


def refused(ledger: Ledger, note: pb.Note, size: int, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        ledger.enter(note, size)


def test_an_offer_has_its_number_and_all_of_a_small_letter_or_nothing() -> None:
    ledger = begun()
    for number in (0, 1, 3):
        refused(ledger, offer(number), 0, f"expected letter 2, got {number}")
    refused(ledger, offer(2, 100), 99, "or all where that is 65536 at most, got 99")
    refused(ledger, offer(2, SMALL_BYTES + 1), SMALL_BYTES + 1, "got 65537")
    assert ledger.enter(offer(2, 100), 100)


def test_no_more_is_offered_than_may_be() -> None:
    ledger = Ledger(CHUNK)
    for number in range(MOST_SMALL_BYTES // SMALL_BYTES):
        assert ledger.enter(offer(number + 1, SMALL_BYTES), SMALL_BYTES)
    refused(ledger, offer(5, 1), 1, "that were not taken")
    assert ledger.enter(receipt(2, SMALL_BYTES), 0)
    assert ledger.enter(offer(5, 1), 1)
    for number in range(6, MOST_LETTERS + 2):
        assert ledger.enter(offer(number), 0)
    refused(ledger, offer(MOST_LETTERS + 2), 0, "expected 1024 letters at most")
    assert ledger.enter(out(3, withdrawal=pb.Withdrawal()), 0)
    assert ledger.enter(offer(MOST_LETTERS + 2), 0)


def test_pages_come_in_order_where_they_are_wanted_and_no_more_than_may_be() -> None:
    ledger = Ledger(CHUNK)
    refused(ledger, page(1, 0), 1, "expected a letter of 1 to 0, got 1")
    assert ledger.enter(offer(1), 0)
    refused(ledger, page(1, 0), CHUNK, "that is wanted")
    ledger = begun()
    refused(ledger, page(1, 5), CHUNK, "from 0 on of a letter that is wanted")
    refused(ledger, page(1, 0), 0, "got 0 from 0 on")
    refused(ledger, page(1, 0), CHUNK + 1, "expected 1 to 4096 bytes")
    for number in range(PAGES):
        assert ledger.enter(page(1, number * CHUNK), CHUNK)
    refused(ledger, page(1, PAGES * CHUNK), 1, "expected 16384 bytes under way at most")
    assert ledger.enter(receipt(1, CHUNK), 0)
    assert ledger.enter(page(1, PAGES * CHUNK), CHUNK)


def test_a_letter_that_is_given_up_makes_room_for_the_next() -> None:
    ledger = begun()
    for number in range(PAGES):
        assert ledger.enter(page(1, number * CHUNK), CHUNK)
    assert ledger.enter(back(1, refusal=pb.Refusal()), 0)
    assert ledger.enter(offer(2), 0)
    assert ledger.enter(receipt(2, 0), 0)
    for number in range(PAGES):
        assert ledger.enter(page(2, number * CHUNK), CHUNK)


def test_a_receipt_is_for_what_was_sent_and_says_something_new() -> None:
    ledger = begun()
    refused(ledger, receipt(1, 0), 0, "expected a receipt for 0 to 0 bytes")
    refused(ledger, receipt(1, 1), 0, "expected a receipt for 0 to 0 bytes, got 1")
    refused(ledger, receipt(2, 0), 0, "expected a letter of 1 to 1, got 2")
    assert ledger.enter(page(1, 0), CHUNK)
    assert ledger.enter(receipt(1, CHUNK), 0)
    refused(ledger, receipt(1, 1), 0, f"{CHUNK} to {CHUNK} bytes, got 1")


def test_a_note_is_short_and_of_a_letter() -> None:
    ledger = begun()
    refused(ledger, receipt(1, 0), 1, "without a payload, got 1 bytes")
    refused(ledger, pb.Note(source=0, target=1), 0, "one of kind None")
    refused(ledger, out(1, departure=pb.Departure()), 0, "one of kind departure")
    failure = pb.Failure(reason="x" * LONGEST_NOTE)
    refused(ledger, back(1, refusal=pb.Refusal(failure=failure)), 0, "a note of 4096 bytes")
    assert pair_of(receipt(1, 0)) == pair_of(page(1, 0)) == (0, 1)


def test_of_a_rank_that_has_left_nothing_is_kept() -> None:
    ledger = begun()
    ledger.depart(1)
    assert ledger.enter(offer(1), 0)
