from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.codecs.top_k import SAMPLE_STRIDE, TopK

KINDS = ("normal", "heavy", "constant", "zero", "sparse", "sorted", "ties", "periodic")


def made(kind: str, elements: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=draw)
    if kind == "heavy":
        values /= torch.rand(elements, generator=draw).clamp(min=1e-6) ** 2
    elif kind == "constant":
        values.fill_(-0.25)
    elif kind == "zero":
        values.zero_()
    elif kind == "sparse":
        values *= torch.rand(elements, generator=draw) < 0.003
    elif kind == "sorted":
        values = values.sort().values
    elif kind == "ties":
        values.round_()
    elif kind == "periodic":  # all that is sampled is large, and nothing else
        values[::SAMPLE_STRIDE] *= 1000
    return values


def round_trip(codec: TopK, values: torch.Tensor) -> torch.Tensor:
    data = torch.empty(codec.size(len(values)), dtype=torch.uint8)
    result = torch.full((len(values),), -7.5)
    codec.encode(values, data, 0)
    codec.decode(data, result)
    return result


def expected(values: torch.Tensor, kept: int) -> torch.Tensor:
    """The largest magnitudes, of equal ones the first; NaN above all."""
    magnitudes = values.abs().nan_to_num(nan=torch.inf, posinf=3.4e38)
    order = magnitudes.sort(descending=True, stable=True).indices[:kept]
    return torch.zeros_like(values).index_copy_(0, order, values[order])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elements", [1, 99, 5000, TopK.segment])
@pytest.mark.parametrize("ratio", [1e-9, 0.01, 0.3, 1.0])
def test_just_the_largest_are_kept_and_of_equal_ones_the_first(
    kind: str, elements: int, ratio: float
) -> None:
    values = made(kind, elements)
    kept = max(1, math.ceil(ratio * elements))
    assert torch.equal(round_trip(TopK(ratio), values), expected(values, kept))


@given(
    st.sampled_from(KINDS), st.integers(1, 9000), st.floats(1e-4, 1.0), st.integers(0, 10**6)
)
def test_any_number_of_elements_and_any_ratio(
    kind: str, elements: int, ratio: float, seed: int
) -> None:
    values = made(kind, elements, seed)
    kept = min(max(1, math.ceil(ratio * elements)), elements)
    assert torch.equal(round_trip(TopK(ratio), values), expected(values, kept))


def test_what_is_not_finite_is_largest_and_a_nan_above_infinity() -> None:
    values = made("heavy", TopK.segment)
    values[[5, 40000]] = torch.nan
    values[[6, 65535]] = -torch.inf
    result = round_trip(TopK(0.01), values)
    assert torch.equal(result.isnan(), values.isnan())
    assert torch.equal(result.isinf(), values.isinf())
    alone = round_trip(TopK(1e-9), values[6:40001])
    assert alone.isnan().all(), "an infinity was not kept, and must not be lost"


def test_as_many_that_are_not_finite_as_are_kept_stay_in_their_elements() -> None:
    values = made("normal", 1000)
    values[:10] = torch.nan
    result = round_trip(TopK(0.01), values)
    assert torch.equal(result.isnan(), values.isnan())


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_none_of_too_many_that_are_not_finite_is_lost(word: str) -> None:
    values = made("normal", 1000)
    values[100:111] = float(word)
    result = round_trip(TopK(0.01), values)
    assert str(float(result[100])) == word
    assert not result[100:111].isfinite().any()
    assert result[~values.isinf()].isnan().all()


def test_places_that_make_no_sense_are_refused() -> None:
    codec = TopK(0.01)
    elements = 300
    values = made("normal", elements)
    data = torch.empty(codec.size(elements), dtype=torch.uint8)
    codec.encode(values, data, 0)
    places = slice(8 + 3 * 4, 8 + 3 * 6)
    for wrong in ([0, 1, elements], [5, 5, 6], [9, 8, 7]):
        damaged = data.clone()
        damaged[places] = torch.tensor(wrong, dtype=torch.int16).view(torch.uint8)
        with pytest.raises(ValueError, match="not in order, below 300"):
            codec.decode(damaged, torch.empty(elements))


@pytest.mark.parametrize(("byte", "value"), [(0, 2), (1, 1), (7, 255)])
def test_a_header_that_makes_no_sense_is_refused(byte: int, value: int) -> None:
    codec = TopK(0.01)
    data = torch.zeros(codec.size(10), dtype=torch.uint8)
    data[byte] = value
    with pytest.raises(ValueError, match="header"):
        codec.decode(data, torch.empty(10))


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, math.nan, math.inf])
def test_a_ratio_is_above_zero_and_at_most_one(ratio: float) -> None:
    with pytest.raises(ValueError, match="a ratio is above 0 and at most 1"):
        TopK(ratio)
