"""Kernels on what is reduced bit by bit, and on what is gathered."""

from __future__ import annotations

import pytest
import torch

from gradwire_proto.dtypes import BY_NAME, OPS
from gradwire_proto.v1 import tensor_pb2 as pb
from gradwire_server.kernels import ChunkSum
from gradwire_server.round import Spec

INTEGERS = ["int8", "int16", "int32", "int64", "uint8"]


def raw(tensor: torch.Tensor) -> memoryview:
    return memoryview(bytearray(tensor.view(torch.uint8).numpy().tobytes()))


class Here:
    """A place that is a tensor of the test's."""

    def __init__(self, result: torch.Tensor) -> None:
        self._result = result

    def total(self, size: int) -> memoryview:
        return self._result.view(torch.uint8).numpy().data[:size]

    result = total


def chunk(result: torch.Tensor, op: pb.Op, shares: int = 1) -> ChunkSum:
    dtype = BY_NAME[str(result.dtype).removeprefix("torch.")]
    ranges = [
        (share * len(result) // shares, (share + 1) * len(result) // shares)
        for share in range(shares)
    ]
    return ChunkSum(Spec(op, dtype, len(result), 0), Here(result), len(result), ranges, 2)


def reduce_nodes(nodes: list[list[torch.Tensor]], op: str) -> torch.Tensor:
    """All nodes' ranks, node after node."""
    results = [torch.empty_like(ranks[0]) for ranks in nodes]
    sums = [chunk(result, OPS[op]) for result in results]
    for total, ranks in zip(sums, nodes, strict=True):
        total.add_local([raw(rank) for rank in ranks], [1.0] * len(ranks))
    for other in sums[1:]:
        sums[0].add(0, [other.partial(0)], other.weights[0])
    sums[0].finish(0)
    return results[0]


BITS = {"band": 0b0100, "bor": 0b0111, "bxor": 0b0101}


@pytest.mark.parametrize("op", BITS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_reduced_bit_by_bit(op: str, dtype: str) -> None:
    like = getattr(torch, dtype)
    one, two, three = (
        torch.full((5,), value, dtype=like) for value in (0b0110, 0b0101, 0b0110)
    )
    assert reduce_nodes([[one, two], [three]], op).tolist() == [BITS[op]] * 5


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", [False, True, True]),
        ("max", [False, True, True]),
        ("bor", [False, True, True]),
        ("product", [False, False, True]),
        ("min", [False, False, True]),
        ("band", [False, False, True]),
        ("bxor", [False, True, False]),
    ],
)
def test_bools_are_reduced_by_logic(op: str, expected: list[bool]) -> None:
    one, two = torch.tensor([False, True, True]), torch.tensor([False, False, True])
    for nodes in ([[one, two]], [[one], [two]]):
        assert reduce_nodes(nodes, op).tolist() == expected


def gathered(elements: int, shares: int = 1) -> tuple[ChunkSum, torch.Tensor]:
    """A chunk to be gathered, in memory that holds other things."""
    result = torch.full((elements,), 99, dtype=torch.uint8)
    return chunk(result, pb.OP_GATHER, shares), result


def test_a_blank_part_travels_as_nothing_and_changes_nothing() -> None:
    blank, _ = gathered(10, 2)
    blank.adopt(0.0)
    assert [blank.partial(share).nbytes for share in range(2)] == [0, 0]
    assert blank.arriving_bytes(1, 0.0) == 0
    full_one, result = gathered(10, 2)
    full_one.add_local([raw(torch.arange(10, dtype=torch.uint8))], [10.0])
    full_one.add(0, [memoryview(b"")], 0.0)
    full_one.finish(0)
    assert result.tolist() == list(range(10))


def test_what_comes_to_a_blank_part_replaces_it() -> None:
    total, result = gathered(4, 1)
    total.adopt(0.0)
    total.add(0, [memoryview(b"\1\0"), memoryview(b"\2\0")], 2.0)
    total.add(0, [memoryview(b"\0\4\0\0")], 1.0)
    total.finish(0)
    assert result.tolist() == [1, 4, 2, 0]


@pytest.mark.parametrize("own", [0.0, 1.0])
def test_blank_parts_are_folded_like_others(own: float) -> None:
    total, result = gathered(2, 1)
    if own:
        total.add_local([raw(torch.tensor([0, 7], dtype=torch.uint8))], [own])
    total.fold(0, [((memoryview(b""),), 0.0)], [((memoryview(b"\5\0"),), 1.0)])
    total.finish(0)
    assert result.tolist() == [5, 7 * own]


def test_what_nobody_brings_to_is_finished_as_zeros() -> None:
    total, result = gathered(3, 1)
    total.add_local([], [])
    total.finish(0)
    assert result.tolist() == [0, 0, 0]
