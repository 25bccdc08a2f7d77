from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.chunks import (
    LEAST_ALONE_BYTES,
    Cut,
    cut,
    cut_alone,
    overlap,
    share_range,
    share_ranges,
)

SIZES = st.integers(0, 10_000)


@given(elements=SIZES, step=st.integers(1, 3000))
def test_the_chunks_of_a_tensor_cover_it_in_order_and_once(elements: int, step: int) -> None:
    cut = Cut(elements, step)
    ranges = [cut.range(chunk) for chunk in range(cut.count)]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == elements


@given(elements=SIZES, step=st.integers(1, 3000))
def test_every_chunk_but_the_last_is_full(elements: int, step: int) -> None:
    cut = Cut(elements, step)
    sizes = [stop - start for start, stop in map(cut.range, range(cut.count))]
    assert set(sizes[:-1]) <= {step}
    assert sizes[-1] <= step


@pytest.mark.case("M24")
def test_an_empty_tensor_has_one_empty_chunk() -> None:
    assert Cut(0, 1024).count == 1
    assert Cut(0, 1024).range(0) == (0, 0)


@pytest.mark.case("M33")
def test_chunks_beyond_2_gib_are_counted_exactly() -> None:
    elements, chunk_bytes = 1_100_000_000, 4 << 20
    pieces = cut(elements, 4, chunk_bytes)
    last = pieces.count - 1
    assert 2 * pieces.range(1024)[0] == 1 << 31
    assert pieces.range(last) == (last * chunk_bytes // 4, elements)


@pytest.mark.parametrize("chunk", [-1, 3])
def test_a_chunk_outside_its_tensor_is_refused(chunk: int) -> None:
    with pytest.raises(ValueError, match=f"chunk {chunk} is outside a tensor of 3 chunks"):
        Cut(9000, 4096).range(chunk)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@given(elements=st.integers(0, 1 << 32), chunk_bytes=st.integers(512, (4 << 20) // 8))
def test_the_sum_of_a_chunk_always_fits_a_slot(
    itemsize: int, elements: int, chunk_bytes: int
) -> None:
    for pieces in (
        cut(elements, itemsize, 8 * chunk_bytes),
        cut_alone(elements, itemsize, 8 * chunk_bytes, 4),
    ):
        assert pieces.step >= 1
        assert pieces.step * itemsize <= 8 * chunk_bytes


def test_a_lone_node_cuts_so_that_its_ranks_work_side_by_side() -> None:
    size = 4 << 20
    assert cut_alone(1 << 10, 4, size, 4).count == 1
    assert cut_alone(1 << 18, 4, size, 4).count == 2
    assert cut_alone(1 << 18, 4, size, 8).count == 4
    assert cut_alone(1 << 24, 4, size, 4).step * 4 == size
    assert cut_alone(1 << 16, 4, size, 4).step * 4 == LEAST_ALONE_BYTES


@given(elements=SIZES, shares=st.integers(1, 40))
def test_the_shares_of_a_chunk_cover_it_in_order_and_once(elements: int, shares: int) -> None:
    ranges = [share_range(share, shares, elements) for share in range(shares)]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == elements


@given(
    elements=SIZES, parts=st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any)
)
def test_weighted_shares_cover_a_chunk_too_and_follow_the_weights(
    elements: int, parts: list[int]
) -> None:
    weights = [Fraction(part, sum(parts)) for part in parts]
    ranges = share_ranges(len(parts), elements, weights)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == elements
    for (start, stop), weight in zip(ranges, weights, strict=True):
        assert abs(stop - start - weight * elements) <= 1


@given(elements=SIZES, shares=st.integers(1, 40))
def test_shares_differ_by_one_element_at_most(elements: int, shares: int) -> None:
    ranges = (share_range(share, shares, elements) for share in range(shares))
    sizes = {stop - start for start, stop in ranges}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("share", [-1, 4])
def test_a_share_outside_its_chunk_is_refused(share: int) -> None:
    with pytest.raises(ValueError, match=f"share {share} is outside a chunk of 4 shares"):
        share_range(share, 4, 100)


@given(*[st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted).map(tuple)] * 2)
def test_an_overlap_is_what_is_in_both_and_lies_within_the_first(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    start, stop = overlap(one, other)
    assert set(range(start, stop)) == set(range(*one)) & set(range(*other))
    assert one[0] <= start <= stop <= one[1]
