from __future__ import annotations

import numpy as np
import pytest
import torch

from gradwire._tensor import LONGEST_TEXT, describe, flatten, unflatten
from gradwire_proto.v1 import tensor_pb2 as pb


def spec(tensor: torch.Tensor, op: str = "mean", weight: float = 1.0) -> pb.Spec:
    return describe(tensor, [tuple(tensor.shape)], op, weight).spec


def doubled(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the caller holds after its elements came back doubled."""
    flat = flatten(tensor)
    assert flat.dtype == dtype
    flat.mul_(2)
    return unflatten(flat, tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
def test_the_result_is_the_callers_own_tensor(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).to(dtype).view(2, 3)
    result = doubled(tensor, dtype)
    assert result is tensor
    assert tensor.tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.case("P10")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64])
def test_a_tensor_travels_exact_unless_another_wire_was_asked_for(dtype: torch.dtype) -> None:
    assert spec(torch.ones(4, dtype=dtype)).wire == pb.WIRE_EXACT


def test_a_contiguous_tensor_travels_without_a_copy() -> None:
    tensor = torch.ones(4)
    assert flatten(tensor).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda t: t.t(), id="transposed"),
        pytest.param(lambda t: t[:, ::2], id="strided"),
        pytest.param(lambda t: t[1:, 1:], id="cut out"),
    ],
)
def test_a_tensor_that_is_not_contiguous_is_written_back_in_place(view: object) -> None:
    assert callable(view)
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    part, expected = view(base), view(base.clone()) * 2
    untouched = view(torch.ones_like(base)).sum()
    assert doubled(part, torch.float32) is part
    assert torch.equal(part, expected)
    assert (base != torch.arange(12).view(3, 4)).sum() <= untouched


def test_a_tensor_that_needs_a_gradient_is_reduced_all_the_same() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert doubled(tensor, torch.float32).tolist() == [2.0] * 3


@pytest.mark.case("M23")
@pytest.mark.parametrize("conjugated", [False, True])
def test_complex_numbers_travel_as_pairs(conjugated: bool) -> None:
    plain = torch.tensor([1 + 2j, 3 - 4j])
    tensor = plain.conj() if conjugated else plain
    expected = (tensor * 2).tolist()
    assert doubled(tensor, torch.float32).tolist() == expected
    described = spec(tensor)
    assert (described.dtype, described.elements) == (pb.DTYPE_FLOAT32, 4)


@pytest.mark.case("M24")
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), ()])
def test_tensors_of_no_and_of_one_element_are_taken(shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape)
    assert flatten(tensor).shape == (tensor.numel(),)
    assert spec(tensor).elements == tensor.numel()


@pytest.mark.case("M24")
def test_an_empty_part_of_a_larger_tensor_is_taken() -> None:
    odd = torch.from_numpy(np.empty(0, np.float32))
    for empty in (torch.ones(4)[2:2], torch.ones(4, 4)[:, 1:1], torch.ones(4)[4::2], odd):
        assert flatten(empty).shape == (0,)


@pytest.mark.case("M31")
def test_shapes_of_equal_size_have_different_digests() -> None:
    tensor = torch.ones(20)
    one, other = (describe(tensor, shapes, "mean", 1.0).spec for shapes in ([(4, 5)], [(5, 4)]))
    assert (one.shapes, other.shapes) == ("4x5", "5x4")
    assert one.shape_digest != other.shape_digest


def test_swapped_layers_have_different_digests() -> None:
    tensor = torch.ones(12)
    one, other = (
        describe(tensor, shapes, "sum", 1.0).spec for shapes in ([(2, 3), (6,)], [(6,), (2, 3)])
    )
    assert one.shape_digest != other.shape_digest


def test_many_shapes_are_cut_short_in_words_but_not_in_the_digest() -> None:
    tensor = torch.ones(1)
    one, other = (
        describe(tensor, [(1, 2, 3)] * 500 + [last], "sum", 1.0).spec for last in ((1,), (2,))
    )
    assert len(one.shapes) <= LONGEST_TEXT + 4
    assert one.shapes == other.shapes
    assert one.shape_digest != other.shape_digest


@pytest.mark.case("M22")
@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(3, dtype=torch.bool), "op mean has no meaning for torch.bool"),
        (
            torch.ones(3).to(torch.float8_e5m2),
            "can't reduce torch.float8_e5m2 .*expected one of float16",
        ),
        (torch.ones(3, device="meta"), "CPU tensors, got one on meta"),
        (torch.eye(3).to_sparse(), "got layout torch.sparse_coo"),
    ],
    ids=["bool", "fp8", "device", "sparse"],
)
def test_what_can_not_be_reduced_is_refused_by_name(tensor: torch.Tensor, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        spec(tensor)


@pytest.mark.parametrize("op", ["min", "max", "product"])
def test_ops_without_a_meaning_for_complex_numbers_are_refused(op: str) -> None:
    with pytest.raises(TypeError, match=rf"op {op} has no meaning for torch\.complex64"):
        spec(torch.ones(3, dtype=torch.complex64), op)


def test_an_unknown_op_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of sum, mean, .*, bxor, got 'avg'"):
        spec(torch.ones(3), "avg")


@pytest.mark.parametrize("weight", [-1.0, 2.0**-33, float("inf"), float("nan")])
def test_a_weight_is_0_or_a_number_above_it(weight: float) -> None:
    with pytest.raises(ValueError, match="expected a weight of 0, or"):
        spec(torch.ones(3), "mean", weight)


@pytest.mark.parametrize(("op", "dtype"), [("sum", torch.float32), ("mean", torch.int64)])
def test_a_weight_needs_a_mean_of_floats(op: str, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="a weight needs op mean and a floating-point tensor"):
        spec(torch.ones(3, dtype=dtype), op, 2.0)


def test_autograd_hears_that_a_tensor_was_written_to() -> None:
    tensor = torch.ones(3)
    tensor.requires_grad_()
    square = tensor.square().sum()
    unflatten(flatten(tensor), tensor)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.backward()
    with torch.inference_mode():
        tensor = torch.ones(3)
    assert unflatten(flatten(tensor), tensor) is tensor
