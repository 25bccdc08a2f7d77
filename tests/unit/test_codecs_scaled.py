"""How near the codecs with a scale for every block come."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.codecs import Codec, codec_of
from gradwire_server.codecs.blocks import BLOCK_ELEMENTS

FP16 = codec_of(pb.WIRE_FP16)
INT8 = codec_of(pb.WIRE_INT8)
INT8_STOCHASTIC = codec_of(pb.WIRE_INT8, stochastic=True)
FP8 = codec_of(pb.WIRE_FP8)
LARGEST = torch.finfo(torch.float32).max

magnitudes = st.integers(-149, 127)
sizes = st.sampled_from([1, 300, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1, 1700])


def made(elements: int, exponents: tuple[int, int], seed: int) -> torch.Tensor:
    """Blocks that differ, some of them zero: each of some range below its power of two."""
    draw = torch.Generator().manual_seed(seed)
    values = torch.rand(elements, generator=draw) * 2 - 1
    for number, block in enumerate(values.split(BLOCK_ELEMENTS)):
        block *= 0.0 if number == 2 else 2.0 ** exponents[number % 2]
    return values


def round_trip(codec: Codec, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    data = torch.empty(codec.size(len(values)), dtype=torch.uint8)
    result = torch.full((len(values),), torch.nan)
    codec.encode(values, data, seed)
    codec.decode(data, result)
    return result


def tops(values: torch.Tensor) -> torch.Tensor:
    """Of every element's block; in fp64, as all that is compared here."""
    largest = [block.abs().max().expand(len(block)) for block in values.split(BLOCK_ELEMENTS)]
    return torch.cat(largest).double()


def errors(codec: Codec, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return (round_trip(codec, values, seed).double() - values.double()).abs()


def grain(values: torch.Tensor) -> torch.Tensor:
    """What fp32 itself rounds off: a part of the value, or of its smallest number."""
    return values.double().abs() * 2.0**-22 + 2.0**-149


@given(sizes, st.tuples(magnitudes, magnitudes), st.integers(0, 1000))
def test_int8_is_within_half_a_step(
    elements: int, exponents: tuple[int, int], seed: int
) -> None:
    values = made(elements, exponents, seed)
    allowed = tops(values) / 127 * 0.50001 + grain(values)
    assert (errors(INT8, values) <= allowed).all()


@given(sizes, st.tuples(magnitudes, magnitudes), st.integers(0, 1000))
def test_int8_is_within_a_step_at_random(
    elements: int, exponents: tuple[int, int], seed: int
) -> None:
    values = made(elements, exponents, seed)
    allowed = tops(values) / 127 * 1.00001 + grain(values)
    assert (errors(INT8_STOCHASTIC, values, seed) <= allowed).all()


@given(sizes, st.tuples(magnitudes, magnitudes), st.integers(0, 1000))
def test_fp8_keeps_four_bits_of_whatever_is_not_tiny_in_its_block(
    elements: int, exponents: tuple[int, int], seed: int
) -> None:
    values = made(elements, exponents, seed)
    least = tops(values) / 448 * 2.0**-10
    allowed = (values.double().abs() / 16).maximum(least) * 1.00001 + grain(values)
    assert (errors(FP8, values) <= allowed).all()


@given(sizes, st.tuples(magnitudes, magnitudes), st.integers(0, 1000))
def test_fp16_keeps_eleven_bits_of_whatever_is_not_tiny_in_its_block(
    elements: int, exponents: tuple[int, int], seed: int
) -> None:
    values = made(elements, exponents, seed)
    allowed = values.double().abs() * 2.0**-11 + tops(values) * 2.0**-39 + 2.0**-149
    assert (errors(FP16, values) <= allowed).all()


@pytest.mark.parametrize("exponent", range(-149, 128))
def test_fp16_is_exact_for_powers_of_two(exponent: int) -> None:
    values = torch.full((600,), 2.0**exponent)
    values[1::2] *= -1
    assert torch.equal(round_trip(FP16, values), values)


@pytest.mark.parametrize("value", [2.0**-24, 40000.0, 65504.0, 1.4e-45])
def test_fp16_is_exact_for_what_has_few_bits(value: float) -> None:
    values = torch.full((600,), value)
    assert torch.equal(round_trip(FP16, values), values)


@pytest.mark.parametrize("codec", [FP16, INT8, FP8])
@pytest.mark.parametrize("value", [LARGEST, 3e38, 2.0**127, 2.0**-126, 1e-42])
def test_the_largest_of_a_block_is_kept_wherever_it_is(codec: Codec, value: float) -> None:
    values = torch.zeros(BLOCK_ELEMENTS)
    values[3], values[9] = value, -value
    assert torch.allclose(round_trip(codec, values), values, rtol=2.0**-11, atol=1e-45)


@pytest.mark.parametrize("outlier", [1e6, LARGEST])
def test_an_outlier_costs_its_own_block_and_no_other(outlier: float) -> None:
    values = made(4 * BLOCK_ELEMENTS, (0, 0), 1)
    expected = errors(INT8, values)
    values[5] = outlier
    found = errors(INT8, values)
    assert torch.allclose(found[BLOCK_ELEMENTS:], expected[BLOCK_ELEMENTS:], atol=1e-6)
    assert (found[:BLOCK_ELEMENTS] <= outlier / 127 * 0.50001).all()


@pytest.mark.parametrize("codec", [INT8, FP8])
@pytest.mark.parametrize("exponent", [-149, -130, 0, 127])
def test_a_block_with_a_nan_is_as_precise_as_others(codec: Codec, exponent: int) -> None:
    values = made(BLOCK_ELEMENTS, (exponent, exponent), 2)
    without = errors(codec, values)
    values[[3, 4, 5]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    found = errors(codec, values)
    found[[3, 4, 5]] = 0
    assert found.mean() <= without.mean() * 1.1 + 2.0**-149


@pytest.mark.parametrize("codec", [FP16, INT8, FP8])
@pytest.mark.parametrize("head", [torch.nan, torch.inf, -torch.inf])
def test_a_head_that_is_no_number_is_refused(codec: Codec, head: float) -> None:
    data = torch.zeros(codec.size(600), dtype=torch.uint8)
    data[4:8].view(torch.float32).fill_(head)
    with pytest.raises(ValueError, match="head of a block"):
        codec.decode(data, torch.empty(600))


def test_whole_numbers_of_steps_are_left_as_they_are_by_chance() -> None:
    values = torch.arange(-127.0, 128.0)
    for seed in range(50):
        assert torch.equal(round_trip(INT8_STOCHASTIC, values, seed), values)
