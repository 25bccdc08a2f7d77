from __future__ import annotations

import re

import pytest

from gradwire_proto.arena import (
    HEADER_BYTES,
    NODE_BYTES,
    RANK_BYTES,
    SLOT_BLOCK_BYTES,
    Layout,
    pack_header,
    unpack_header,
)

LAYOUT = Layout(ranks=3, slots=4, chunk_bytes=4096)
NONCE = bytes(range(16))


def test_no_two_parts_share_a_byte_and_none_is_outside() -> None:
    parts = [(0, HEADER_BYTES), (LAYOUT.node_block, NODE_BYTES)]
    parts += [(LAYOUT.rank_block(rank), RANK_BYTES) for rank in range(3)]
    parts += [(LAYOUT.slot_block(slot), SLOT_BLOCK_BYTES) for slot in range(4)]
    parts += [(LAYOUT.slot(slot), LAYOUT.slot_bytes) for slot in range(4)]
    parts.sort()
    ends = [start + size for start, size in parts]
    assert all(end <= start for end, (start, _) in zip(ends, parts[1:], strict=False))
    assert ends[-1] == LAYOUT.size


def test_a_slot_holds_a_sum_and_a_result_half_as_wide_and_starts_on_a_page() -> None:
    assert LAYOUT.slot_bytes >= 4096 + 2048
    assert {LAYOUT.slot(slot) % 4096 for slot in range(4)} == {0}


def test_memory_grows_with_the_slots_and_hardly_with_the_ranks() -> None:
    assert Layout(8, 4, 1 << 20).size - Layout(1, 4, 1 << 20).size <= 8 * RANK_BYTES
    assert Layout(1, 8, 1 << 20).size > 1.9 * Layout(1, 4, 1 << 20).size


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_arena_is_refused(slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot} is outside an arena of 4 slots"):
        LAYOUT.slot(slot)
    with pytest.raises(ValueError, match=f"slot {slot} is outside an arena of 4 slots"):
        LAYOUT.slot_block(slot)


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_outside_the_arena_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"local rank {rank} is outside an arena of 3 ranks"):
        LAYOUT.rank_block(rank)


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
    with pytest.raises(ValueError, match=re.escape("expected an arena of version 5")):
        unpack_header(bytes(header))
