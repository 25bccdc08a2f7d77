from __future__ import annotations

import re

import pytest

from gradwire_proto.arena import HEADER_BYTES, Layout, pack_header, unpack_header

LAYOUT = Layout(ranks=3, slots=4, slot_bytes=4096)
NONCE = bytes(range(16))


def test_no_two_slots_share_a_byte_and_none_is_outside() -> None:
    offsets = [LAYOUT.result(slot) for slot in range(4)]
    offsets += [LAYOUT.contribution(rank, slot) for rank in range(3) for slot in range(4)]
    assert sorted(offsets) == list(range(HEADER_BYTES, LAYOUT.size, 4096))


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_arena_is_refused(slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot} is outside an arena of 4 slots"):
        LAYOUT.result(slot)
    with pytest.raises(ValueError, match=f"slot {slot} is outside an arena of 4 slots"):
        LAYOUT.contribution(0, slot)


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_outside_the_arena_is_refused(rank: int) -> None:
    """The result slots stand where those of a rank -1 would."""
    with pytest.raises(ValueError, match=f"local rank {rank} is outside an arena of 3 ranks"):
        LAYOUT.contribution(rank, 0)


def test_a_header_says_how_the_arena_is_laid_out() -> None:
    header = pack_header(LAYOUT, NONCE)
    assert len(header) <= HEADER_BYTES
    assert unpack_header(header + b"\0" * HEADER_BYTES) == (LAYOUT, NONCE)


def test_a_short_header_is_refused() -> None:
    with pytest.raises(ValueError, match=r"header of 44 bytes, got 5"):
        unpack_header(b"gradw")


@pytest.mark.parametrize("position", [0, 8])
def test_a_header_of_another_kind_or_version_is_refused(position: int) -> None:
    header = bytearray(pack_header(LAYOUT, NONCE))
    header[position] ^= 0xFF
    with pytest.raises(ValueError, match=re.escape("expected an arena of version 1")):
        unpack_header(bytes(header))
