"""What every codec promises. What each one promises beyond that has a file of its own."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.codecs import SEGMENT_ELEMENTS, Codec, codec_of, encoded_size, segments
from gradwire_server.codecs.base import ALIGNMENT

CODECS = {
    "bf16": codec_of(pb.WIRE_BF16),
    "fp16": codec_of(pb.WIRE_FP16),
    "int8": codec_of(pb.WIRE_INT8),
    "int8, stochastic": codec_of(pb.WIRE_INT8, stochastic=True),
    "fp8": codec_of(pb.WIRE_FP8),
    "fp8, stochastic": codec_of(pb.WIRE_FP8, stochastic=True),
    "topk": codec_of(pb.WIRE_TOPK, 0.01),
    "topk, all": codec_of(pb.WIRE_TOPK, 1.0),
}
PER_BYTE = {"bf16": 0.5, "fp16": 0.505, "int8": 0.26, "fp8": 0.26, "topk": 0.0155}
KINDS = ("normal", "subnormal", "huge", "wide", "zero", "constant", "special")
LARGEST = torch.finfo(torch.float32).max

codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


def made(kind: str, elements: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=draw)
    if kind == "subnormal":
        values *= 2.0**-140
    elif kind == "huge":
        values = (values * LARGEST / 3).clamp(-LARGEST, LARGEST)
    elif kind == "wide":
        values *= 2.0 ** torch.randint(-140, 120, (elements,), generator=draw)
    elif kind == "zero":
        values.zero_()
    elif kind == "constant":
        values.fill_(40000.0)
    elif kind == "special":
        chance = torch.rand(elements, generator=draw)
        values[chance < 0.2] = torch.nan
        values[chance > 0.9] = torch.inf
        values[chance > 0.95] = -torch.inf
    return values


def encoded(codec: Codec, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """With other bytes before and behind, which must stay."""
    size = codec.size(len(values))
    room = torch.full((size + 2 * ALIGNMENT,), 0xA5, dtype=torch.uint8)
    codec.encode(values, room[ALIGNMENT : ALIGNMENT + size], seed)
    assert (room[:ALIGNMENT] == 0xA5).all()
    assert (room[ALIGNMENT + size :] == 0xA5).all()
    return room[ALIGNMENT : ALIGNMENT + size].clone()


def decoded(codec: Codec, data: torch.Tensor, elements: int) -> torch.Tensor:
    """As above."""
    room = torch.full((elements + 2,), -7.5)
    codec.decode(data, room[1:-1])
    assert room[0] == room[-1] == -7.5
    return room[1:-1].clone()


def round_trip(codec: Codec, values: torch.Tensor, seed: int = 0) -> torch.Tensor:
    return decoded(codec, encoded(codec, values, seed), len(values))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit by bit."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@codecs
@settings(max_examples=40)
@given(st.sampled_from(KINDS), st.integers(1, 1500), st.integers(0, 2**64 - 1))
def test_the_same_values_and_seed_give_the_same_bytes(
    codec: Codec, kind: str, elements: int, seed: int
) -> None:
    values = made(kind, elements, 1)
    before = values.clone()
    data = encoded(codec, values, seed)
    assert same(data, encoded(codec, values, seed))
    assert same(values, before), "the values stay as they were"


@pytest.mark.parametrize("name", PER_BYTE)
def test_every_number_of_elements_has_its_size_and_comes_back(name: str) -> None:
    codec = CODECS[name]
    values = made("normal", 2000, 2)
    for elements in range(1, 2001):
        part = values[:elements]
        assert codec.size(elements) % ALIGNMENT == 0
        data = torch.full((codec.size(elements),), 0xA5, dtype=torch.uint8)
        result = torch.full((elements,), torch.nan)
        codec.encode(part, data, 3)
        codec.decode(data, result)
        assert result.isfinite().all()
        assert (result - part).abs().max() <= part.abs().max()


@codecs
def test_a_share_of_several_segments_is_one_behind_the_other(codec: Codec) -> None:
    elements = 2 * SEGMENT_ELEMENTS + 513
    values = made("normal", elements, 3)
    result = torch.full((elements,), torch.nan)
    end = 0
    for start, stop in segments(codec, elements):
        end += codec.size(stop - start)
        result[start:stop] = round_trip(codec, values[start:stop], start)
    assert end == encoded_size(codec, elements)
    assert result.isfinite().all()


@codecs
def test_an_empty_segment_takes_no_bytes(codec: Codec) -> None:
    assert codec.size(0) == 0


@pytest.mark.parametrize("name", PER_BYTE)
def test_a_segment_is_as_small_as_was_promised(name: str) -> None:
    share = CODECS[name].size(65536) / (4 * 65536)
    assert share <= PER_BYTE[name]


@codecs
@pytest.mark.parametrize("elements", [1, 511, 512, 1500, 65536])
def test_zeros_stay_zero(codec: Codec, elements: int) -> None:
    assert not round_trip(codec, torch.zeros(elements)).any()


@codecs
@settings(max_examples=40)
@given(st.sampled_from(["subnormal", "huge", "wide", "constant"]), st.integers(1, 1500))
def test_the_ends_of_the_range_come_back_finite_and_not_larger(
    codec: Codec, kind: str, elements: int
) -> None:
    values = made(kind, elements, 4)
    if codec is CODECS["bf16"]:  # its largest number is smaller
        values = values.clamp(-3.38e38, 3.38e38)
    result = round_trip(codec, values)
    assert result.isfinite().all()
    assert result.abs().max() <= values.abs().max() * (1 + 2.0**-8)


@codecs
@settings(max_examples=40)
@given(st.integers(1, 1500), st.integers(0, 1499), st.sampled_from(["nan", "inf", "-inf"]))
def test_what_is_not_finite_stays_in_its_element(
    codec: Codec, elements: int, place: int, word: str
) -> None:
    values = made("normal", elements, 5)
    values[place % elements] = float(word)
    result = round_trip(codec, values)
    assert same(result.isfinite(), values.isfinite())
    assert str(float(result[place % elements])) == word


@pytest.mark.parametrize("name", [name for name in CODECS if name != "topk"])
@settings(max_examples=40)
@given(st.integers(1, 1500), st.integers(0, 10**6))
def test_many_that_are_not_finite_stay_in_their_elements(
    name: str, elements: int, seed: int
) -> None:
    values = made("special", elements, seed)
    result = round_trip(CODECS[name], values)
    assert torch.equal(result.isnan(), values.isnan())
    assert torch.equal(result.isposinf(), values.isposinf())
    assert torch.equal(result.isneginf(), values.isneginf())


@codecs
def test_infinite_elements_leave_the_finite_ones_of_their_block_as_they_were(
    codec: Codec,
) -> None:
    values = made("normal", 512, 6)
    values[7] = 4.0  # the largest, so that the scale is known
    special = values.clone()
    special[100] = torch.nan
    error = (round_trip(codec, values) - values).abs()
    special_error = (round_trip(codec, special) - special).abs()
    special_error[100] = 0
    assert special_error.sum() <= 1.1 * error.sum() + 1e-3


@codecs
@settings(max_examples=40)
@given(st.binary(max_size=64), st.sampled_from([1, 3, 512, 777]), st.integers(0, 10**6))
def test_whatever_the_bytes_are_there_are_values_or_a_value_error(
    codec: Codec, begin: bytes, elements: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (codec.size(elements),), generator=draw, dtype=torch.uint8)
    head = torch.tensor(list(begin[: len(data)]), dtype=torch.uint8)
    data[: len(head)] = head
    try:
        result = decoded(codec, data, elements)
    except ValueError:
        return
    assert len(result) == elements


@codecs
def test_several_threads_encode_at_once(codec: Codec) -> None:
    tensors = [made("normal", 65536, seed) for seed in range(8)]
    expected = [encoded(codec, values, 9) for values in tensors]
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda values: encoded(codec, values, 9), tensors)
    assert all(map(same, found, expected))


@pytest.mark.parametrize("name", ["int8, stochastic", "fp8, stochastic"])
def test_the_mean_of_many_random_roundings_is_the_value(name: str) -> None:
    codec, seeds = CODECS[name], range(400)
    values = made("normal", 512, 7)
    trips = torch.stack([round_trip(codec, values, seed) for seed in seeds]).double()
    assert not same(trips[0], trips[1])
    off = (trips.mean(0) - values.double()).abs()
    # Two neighbours of a value are a step apart, so that its results deviate by half of one.
    top = values.abs().max()
    steps = top / 127 if name.startswith("int8") else (values.abs() / 8).maximum(top / 2**17)
    sigma = steps / 2 / math.sqrt(len(seeds))
    assert (off <= 5 * sigma).all()
    found = trips.var(0).sum() / len(seeds)
    assert off.square().sum() <= 1.3 * found, "all together are off as chance alone has it"


def test_all_bits_of_a_seed_count() -> None:
    codec = CODECS["int8, stochastic"]
    values = made("normal", 100, 8)
    assert not same(encoded(codec, values, 1), encoded(codec, values, 1 + 2**40))


def test_a_wire_that_is_none_has_no_codec() -> None:
    with pytest.raises(ValueError, match="has no codec"):
        codec_of(pb.WIRE_EXACT)
