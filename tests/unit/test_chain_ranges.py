"""Ranks of one node that bring, or take, a part of a tensor."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire._order import gathering, scattering

if TYPE_CHECKING:
    from conftest import Node  # type: ignore[import-not-found]  # pytest finds it

CHUNK_BYTES = 64 * 1024
"""Of every node here; see conftest."""


def noise(rank: int, elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    draw = torch.Generator().manual_seed(rank)
    return (torch.randn(elements, generator=draw) * 10.0 ** (rank % 5)).to(dtype)


def test_each_rank_copies_in_its_part_and_takes_the_others(node: Node) -> None:
    """The slots hold other things, and more chunks than slots pass."""
    elements, ends = 5 * CHUNK_BYTES + 7, (0, 10, 3 * CHUNK_BYTES + 1, 5 * CHUNK_BYTES)
    whole = noise(9, elements, torch.uint8)
    for rank in range(3):
        node.bring(rank, 0, torch.full((elements,), 255, dtype=torch.uint8), "max")
    for rank, part in enumerate(pairwise(ends)):
        tensor = noise(rank, elements, torch.uint8)
        tensor[slice(*part)] = whole[slice(*part)]
        node.order(rank, 1, gathering(tensor, part))
    node.work()
    whole[ends[-1] :] = 0
    for rank in range(3):
        assert torch.equal(node.done[rank, 1], whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rank_is_written_what_it_takes_and_no_more(node: Node, dtype: torch.dtype) -> None:
    elements = 2 * CHUNK_BYTES
    parts = [(0, 0), (5, CHUNK_BYTES + 5), (CHUNK_BYTES // 4, elements)]
    tensors = [noise(rank, elements, dtype) for rank in range(3)]
    for rank in range(3):
        node.bring(rank, 0, tensors[rank].clone())
        node.order(rank, 1, scattering(tensors[rank].clone(), parts[rank], "sum", 1.0))
    node.work()
    for rank, (start, stop) in enumerate(parts):
        expected = tensors[rank].clone()
        expected[start:stop] = node.done[rank, 0][start:stop]
        assert torch.equal(node.done[rank, 1], expected)


def test_other_nodes_get_zeros_beside_what_the_ranks_bring(linked: Node) -> None:
    control = linked.arena.control
    parts = [((0, 0), (0, 0)), ((2, 3), (7, 9)), ((0, 0), (0, 10))]
    for sequence, (first, second) in enumerate(parts):
        slot = linked.arena.place(sequence).total(10)
        slot[:] = b"x" * 10
        for rank, part in enumerate((first, second)):
            linked.order(rank, sequence, gathering(torch.ones(10, dtype=torch.uint8), part))
        linked.work()
    assert [control.weight(ticket) for ticket in range(3)] == [0, 3, 10]
    memory = [bytes(linked.arena.place(ticket).total(10)) for ticket in range(1, 3)]
    assert memory == [b"\0\0\1\0\0\0\0\1\1\0", b"\1" * 10]
