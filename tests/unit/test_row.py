"""Rows: tensors as the session takes them, in their own memory where that is possible."""

from __future__ import annotations

import pytest
import torch

from gradwire._row import Row, spread


def test_a_contiguous_tensor_is_its_own_row() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    row = Row([tensor]).fill()
    assert row.flat.data_ptr() == tensor.data_ptr()
    assert not row.is_copy


def test_parts_of_one_tensor_in_their_order_are_one_row() -> None:
    whole = torch.arange(6.0)
    row = Row(list(whole.split([1, 2, 3])))
    assert row.flat.data_ptr() == whole.data_ptr()
    assert row.ranges == [(0, 1), (1, 3), (3, 6)]


@pytest.mark.parametrize(
    "tensors",
    [
        list(torch.arange(6.0).split(3))[::-1],
        [torch.ones(2), torch.ones(2)],
        [torch.arange(6.0).view(2, 3).t()],
        [torch.ones(3, dtype=torch.complex64).conj()],
    ],
    ids=["reversed", "apart", "transposed", "conjugated"],
)
def test_other_tensors_are_copied_there_and_back(tensors: list[torch.Tensor]) -> None:
    expected = [tensor.clone() for tensor in tensors]
    row = Row(tensors).fill_all()
    assert row.is_copy
    for tensor in tensors:
        tensor.zero_()
    row.deliver()
    for tensor, each in zip(tensors, expected, strict=True):
        assert torch.equal(tensor, each)


def test_complex_numbers_are_two_real_ones() -> None:
    tensor = torch.tensor([1 + 2j, 3 + 4j])
    assert Row([tensor]).fill().flat.tolist() == [1, 2, 3, 4]
    spread(torch.tensor([5.0, 6, 7, 8]), tensor)
    assert tensor.tolist() == [5 + 6j, 7 + 8j]


def test_a_row_of_its_own_leaves_the_tensor_alone() -> None:
    tensor = torch.ones(3)
    Row([tensor], own=True).fill().flat.mul_(2)
    assert tensor.tolist() == [1, 1, 1]


def test_what_can_not_lie_in_a_row_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match=r"torch\.sparse_coo"):
        Row([torch.eye(2).to_sparse()])
    with pytest.raises(TypeError, match=r"torch\.float32, torch\.int64"):
        Row([torch.ones(1), torch.ones(1, dtype=torch.int64)])


def test_a_row_of_nothing_is_empty() -> None:
    row = Row([torch.empty(0, 3)]).fill()
    row.deliver()
    assert row.flat.numel() == 0
