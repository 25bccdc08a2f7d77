"""A chunk's sum over a lossy wire: what is sent, and what everybody reads."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire_proto.chunks import share_ranges
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.codecs import SEGMENT_ELEMENTS
from gradwire_server.coding import CodedSum, mix, seed_of
from gradwire_server.errors import ProtocolError
from gradwire_server.kernels import bytes_of
from gradwire_server.round import Coding, Key, Spec

ELEMENTS = 2 * SEGMENT_ELEMENTS + 77
WIRES = [pb.WIRE_BF16, pb.WIRE_FP16, pb.WIRE_INT8, pb.WIRE_FP8, pb.WIRE_TOPK]


class Owing:
    """In place of a loan: what was lost before, and now."""

    def __init__(self, before: torch.Tensor | None) -> None:
        self.memory = (before, torch.full((ELEMENTS,), math.nan))


class Here:
    """In place of an arena's slot."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(6 * ELEMENTS))

    def total(self, size: int) -> memoryview:
        return self._memory[:size]

    def result(self, size: int) -> memoryview:
        return self._memory[4 * ELEMENTS :][:size]


def coded(
    values: torch.Tensor,
    wire: pb.Wire = pb.WIRE_INT8,
    owing: Owing | None = None,
    *,
    hands_out: bool = False,
    nodes: int = 2,
) -> CodedSum:
    """One node's sum of one rank's values, out of `nodes`."""
    coding = Coding(wire, 0.01)
    shares = share_ranges(nodes if hands_out else 1, ELEMENTS)
    spec = Spec(pb.OP_SUM, pb.DTYPE_FLOAT32, ELEMENTS, 0, coding=coding)
    place, loan = Here(), owing
    total = CodedSum(
        spec,
        coding,
        place,
        ELEMENTS,
        shares,
        nodes,
        hands_out=hands_out,
        seed=1,
        loan=loan,  # type: ignore[arg-type]
    )
    total.add_local([bytes_of(values)], [1.0])
    return total


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed))


def result(total: CodedSum) -> torch.Tensor:
    return torch.frombuffer(bytearray(total.whole()), dtype=torch.float32)


def in_one_shot(totals: list[CodedSum]) -> None:
    for total in totals:
        assert not total.is_ready(0)
        total.encode(0)
        assert total.is_ready(0)
    for node, total in enumerate(totals):
        parts = [((each.partial(0),), 1.0) for each in totals]
        total.fold(0, parts[:node], parts[node + 1 :])
        total.finish(0)


@pytest.mark.parametrize("nodes", [2, 3, 5])
@pytest.mark.parametrize("wire", WIRES)
def test_in_one_shot_all_nodes_add_what_all_have_read(wire: pb.Wire, nodes: int) -> None:
    totals = [coded(numbers(node), wire, nodes=nodes) for node in range(nodes)]
    in_one_shot(totals)
    assert all(torch.equal(result(each), result(totals[0])) for each in totals)
    assert all(each.weights == [nodes] for each in totals)


@pytest.mark.parametrize("wire", WIRES)
def test_who_hands_out_a_result_reads_what_the_others_read(wire: pb.Wire) -> None:
    owner, other = (coded(numbers(node), wire, hands_out=True) for node in range(2))
    other.encode(0)
    owner.add(0, (other.partial(0),), 1.0)
    owner.finish(0)
    other.store(0, (owner.final(0),))
    end = ELEMENTS // 2
    assert torch.equal(result(owner)[:end], result(other)[:end])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20))
def test_pieces_may_end_anywhere(cuts: list[int]) -> None:
    sender, whole, cut = (coded(numbers(seed)) for seed in (0, 1, 1))
    sender.encode(0)
    data = sender.partial(0)
    whole.fold(0, [((data,), 1.0)], [])
    pieces, start = [], 0
    for part in cuts:
        pieces.append(data[start : start + 64 * part])
        start += 64 * part
    cut.fold(0, [((*pieces, data[start:]), 1.0)], [])
    assert torch.equal(result(whole), result(cut))


def test_what_is_lost_and_what_is_read_are_what_was_there() -> None:
    owing = Owing(numbers(5) / 100)
    total = coded(numbers(0), owing=owing)
    total.encode(0)
    before, after = owing.memory
    assert before is not None
    assert torch.allclose(result(total) + after, numbers(0) + before, rtol=0, atol=1e-6)
    assert after.abs().max() > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_owed(value: float) -> None:
    values, owing = numbers(0), Owing(None)
    values[70_000] = value
    coded(values, owing=owing).encode(0)
    assert owing.memory[1].isfinite().all()


def test_bytes_that_make_no_sense_are_the_peers_fault() -> None:
    sender, total = coded(numbers(0), pb.WIRE_TOPK), coded(numbers(1), pb.WIRE_TOPK)
    sender.encode(0)
    nonsense = bytearray(sender.partial(0))
    nonsense[0] = 77
    total.add(0, (memoryview(nonsense),), 1.0)
    with pytest.raises(ProtocolError, match="a share makes no sense"):
        total.finish(0)


def test_random_numbers_depend_on_all_that_tells_rounds_apart() -> None:
    coding = Coding(pb.WIRE_INT8, stochastic=True, seed=3, identity=9)
    other = Coding(pb.WIRE_INT8, stochastic=True, seed=4, identity=9)
    seeds = {
        seed_of(coding, Key(5, 1), 0, 2),
        seed_of(other, Key(5, 1), 0, 2),
        seed_of(coding, Key(5, 2), 0, 2),
        seed_of(coding, Key(5, 1), 1, 2),
        seed_of(coding, Key(5, 1), 0, 3),
        seed_of(coding, Key(5, 1), 0, None),
    }
    assert len(seeds) == 6
    assert seed_of(coding, Key(8, 1), 0, 2) == seed_of(coding, Key(5, 1), 0, 2)
    assert all(0 <= seed < 2**64 for seed in seeds)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32))
def test_neighbours_have_seeds_that_are_far_apart(seed: int, number: int) -> None:
    apart = (mix(seed, number) ^ mix(seed, number + 1)).bit_count()
    assert 5 < apart < 59
