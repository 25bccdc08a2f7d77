from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.chunks import chunk_count, chunk_range, share_range

SIZES = st.integers(0, 10_000)


@given(size=SIZES, chunk_bytes=st.integers(1, 3000))
def test_the_chunks_of_a_tensor_cover_it_in_order_and_once(size: int, chunk_bytes: int) -> None:
    count = chunk_count(size, chunk_bytes)
    ranges = [chunk_range(chunk, size, chunk_bytes) for chunk in range(count)]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == size


@given(size=SIZES, chunk_bytes=st.integers(1, 3000))
def test_every_chunk_but_the_last_is_full(size: int, chunk_bytes: int) -> None:
    count = chunk_count(size, chunk_bytes)
    sizes = [
        stop - start
        for start, stop in (chunk_range(i, size, chunk_bytes) for i in range(count))
    ]
    assert set(sizes[:-1]) <= {chunk_bytes}
    assert sizes[-1] <= chunk_bytes


@pytest.mark.case("M24")
def test_an_empty_tensor_has_one_empty_chunk() -> None:
    assert chunk_count(0, 4096) == 1
    assert chunk_range(0, 0, 4096) == (0, 0)


@pytest.mark.case("M33")
def test_chunks_beyond_2_gib_are_counted_exactly() -> None:
    size, chunk_bytes = 2_200_000_000, 2 << 20
    last = chunk_count(size, chunk_bytes) - 1
    assert chunk_range(1024, size, chunk_bytes)[0] == 1 << 31
    assert chunk_range(last, size, chunk_bytes) == (last * chunk_bytes, size)


@pytest.mark.parametrize("chunk", [-1, 3])
def test_a_chunk_outside_its_tensor_is_refused(chunk: int) -> None:
    with pytest.raises(ValueError, match=f"chunk {chunk} is outside a tensor of 3 chunks"):
        chunk_range(chunk, 9000, 4096)


@given(elements=SIZES, shares=st.integers(1, 40))
def test_the_shares_of_a_chunk_cover_it_in_order_and_once(elements: int, shares: int) -> None:
    ranges = [share_range(share, shares, elements) for share in range(shares)]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == elements


@given(elements=SIZES, shares=st.integers(1, 40))
def test_shares_differ_by_one_element_at_most(elements: int, shares: int) -> None:
    ranges = (share_range(share, shares, elements) for share in range(shares))
    sizes = {stop - start for start, stop in ranges}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("share", [-1, 4])
def test_a_share_outside_its_chunk_is_refused(share: int) -> None:
    with pytest.raises(ValueError, match=f"share {share} is outside a chunk of 4 shares"):
        share_range(share, 4, 100)
