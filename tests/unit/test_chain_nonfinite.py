"""What a lone node's ranks say to one another of NaNs, in the arena."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from gradwire._order import reducing
from gradwire._tensor import inspected
from gradwire_proto.nonfinite import NOBODY, Finding

if TYPE_CHECKING:
    from conftest import Node  # type: ignore[import-not-found]  # pytest finds it

NAN = float("nan")


def bring(node: Node, tensors: list[torch.Tensor], *, inspects: bool) -> None:
    for rank, tensor in enumerate(tensors):
        order = reducing(tensor, [tuple(tensor.shape)], "sum", 1.0)
        if inspects:
            order = order._replace(described=inspected(order.described))
        node.order(rank, 0, order)
    node.work()


@pytest.mark.case("M08")
@pytest.mark.parametrize("inspects", [False, True])
def test_the_lowest_rank_is_named_and_the_next_ticket_knows_nothing_of_it(
    node: Node, inspects: bool
) -> None:
    tensors = [torch.ones(20_000) for _ in range(3)]
    tensors[1][15_000] = tensors[2][100] = NAN
    tensors[2][19_000] = NAN
    bring(node, tensors, inspects=inspects)
    # Chunks are of 16384 elements here.
    named = [Finding(1, 15_000), Finding(2, 19_000 - 16_384)]
    unnamed = [Finding(NOBODY, 100), Finding(NOBODY, 19_000 - 16_384)]
    control = node.arena.control
    assert [control.finding(0), control.finding(1)] == (named if inspects else unnamed)
    for sequence in (1, 2, 3):
        for rank in range(3):
            node.bring(rank, sequence, torch.ones(10))
    node.work()
    assert [control.finding(ticket) for ticket in (2, 3, 4)] == [None] * 3


@pytest.mark.case("M08")
@pytest.mark.parametrize("inspects", [False, True])
def test_a_sum_that_overflows_is_nobodys(node: Node, inspects: bool) -> None:
    tensors = [torch.ones(100) for _ in range(3)]
    for tensor in tensors:
        tensor[77] = 3e38
    bring(node, tensors, inspects=inspects)
    assert node.arena.control.finding(0) == Finding(NOBODY, 77)
