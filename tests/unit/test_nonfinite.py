from __future__ import annotations

import pytest
import torch

from gradwire_proto.nonfinite import NOBODY, Finding, first_nonfinite, least, read

INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.case("M08")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [[NAN], [INF], [-INF], [INF, -INF], [INF, NAN]])
def test_the_first_element_that_is_not_finite_is_found(
    dtype: torch.dtype, bad: list[float]
) -> None:
    for elements in (2, 1000, 70_000):
        values = torch.ones(elements, dtype=dtype)
        for place, value in zip((elements // 2, elements - 1), bad, strict=False):
            values[place] = value
        assert first_nonfinite(values) == elements // 2
        assert first_nonfinite(values, 10) == 10 + elements // 2


@pytest.mark.case("M08")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("elements", [0, 1, 70_000])
def test_a_sum_that_overflows_is_not_what_is_looked_for(
    dtype: torch.dtype, elements: int
) -> None:
    assert first_nonfinite(torch.full((elements,), torch.finfo(dtype).max, dtype=dtype)) is None
    assert first_nonfinite(torch.zeros(elements, dtype=dtype)) is None


def test_the_lowest_rank_comes_first_and_nobody_last() -> None:
    found = [Finding(NOBODY, 0), None, Finding(2, 9), Finding(2, 4), Finding(3, 1)]
    assert least(found) == Finding(2, 4)
    assert least([None]) is None


@pytest.mark.parametrize("found", [Finding(0, 0), Finding(3, 2**40), Finding(NOBODY, 7)])
def test_a_finding_is_the_same_after_its_journey(found: Finding) -> None:
    assert read(found.write()) == found
    assert found.moved(5) == Finding(found.rank, found.element + 5)
