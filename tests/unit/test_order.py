from __future__ import annotations

import pytest
import torch

from gradwire._order import gathering, reducing, scattering
from gradwire._tensor import unflatten
from gradwire_proto.v1 import tensor_pb2 as pb


def test_a_reduced_tensor_is_brought_and_taken_whole() -> None:
    order = reducing(torch.ones(2, 3), [(2, 3)], "sum", 1.0)
    assert (order.brings, order.takes) == ((0, 6), ((0, 6),))


@pytest.mark.parametrize(
    ("dtype", "taken"), [(torch.bfloat16, (2, 5)), (torch.complex64, (4, 10))]
)
def test_a_scattered_tensor_is_brought_whole_and_taken_in_part(
    dtype: torch.dtype, taken: tuple[int, int]
) -> None:
    tensor = torch.ones(7, dtype=dtype)
    order = scattering(tensor, (2, 5), "sum", 1.0)
    assert order.takes == (taken,)
    assert order.brings == (0, order.described.spec.elements)
    assert order.flat.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_what_is_taken_may_go_elsewhere_and_each_part_knows_where(dtype: torch.dtype) -> None:
    tensor, out = torch.ones(8, dtype=dtype), torch.zeros(5, dtype=dtype)
    versions = tensor._version, out._version  # noqa: SLF001 - torch has no other door
    order = scattering(tensor, (2, 7), "sum", 1.0, out)
    numbers = 2 if dtype.is_complex else 1
    whole, first = order.target
    assert (whole.data_ptr(), first) == (out.data_ptr(), 2 * numbers)
    for start, stop, taken in ((0, 1, (2, 2)), (0, 4, (2, 4)), (4, 8, (4, 7)), (7, 8, (7, 7))):
        part = order.part(start * numbers, stop * numbers)
        row, first = part.target
        assert row.numel() == (taken[1] - taken[0]) * numbers
        if row.numel():
            assert part.takes == (tuple((each - start) * numbers for each in taken),)
            assert first == part.takes[0][0]
            assert row.data_ptr() == out[taken[0] - 2 :].data_ptr()
    unflatten(order.flat, order.tensor)
    now = tensor._version, out._version  # noqa: SLF001 - as above
    assert now == (versions[0], versions[1] + 1)


def test_an_out_that_does_not_fit_is_refused() -> None:
    tensor = torch.ones(8)
    for out in (torch.ones(3), torch.ones(2, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"expected an out of 2 x torch.float32, got"):
            scattering(tensor, (2, 4), "sum", 1.0, out)
    with pytest.raises(ValueError, match="shares no memory"):
        scattering(tensor, (2, 4), "sum", 1.0, tensor[3:5])
    for own in (tensor[2:4], tensor[4:4]):
        scattering(tensor, (2, 2 + own.numel()), "sum", 1.0, own)


def test_a_scattered_tensor_is_not_taken_for_a_reduced_one() -> None:
    tensor = torch.ones(7)
    reduced, scattered = (
        reducing(tensor, [(7,)], "sum", 1.0),
        scattering(tensor, (0, 7), "sum", 1),
    )
    assert scattered.described.spec.shapes == "7, scattered"
    assert reduced.described.spec.shape_digest != scattered.described.spec.shape_digest


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e5m2, torch.complex128])
def test_a_gathered_tensor_travels_as_bytes_where_it_lies(dtype: torch.dtype) -> None:
    tensor = torch.zeros(9, dtype=dtype)[1:]
    order, size = gathering(tensor, (3, 5)), dtype.itemsize
    assert (order.flat.dtype, order.flat.data_ptr()) == (torch.uint8, tensor.data_ptr())
    assert order.brings == (3 * size, 5 * size)
    assert order.takes == ((0, 3 * size), (5 * size, 8 * size))
    spec = order.described.spec
    assert (spec.op, spec.dtype, spec.elements) == (pb.OP_GATHER, pb.DTYPE_UINT8, 8 * size)
    assert spec.shapes == f"8 x {str(dtype).removeprefix('torch.')}"


def test_nothing_can_be_gathered_too() -> None:
    for empty in (torch.ones(0), torch.ones(4)[4:], torch.ones(4)[4:4:2]):
        order = gathering(empty, (0, 0))
        assert (order.flat.numel(), order.described.spec.elements) == (0, 0)


@pytest.mark.parametrize("part", [(-1, 2), (3, 2), (0, 5), (5, 5)])
def test_a_range_outside_the_tensor_is_refused(part: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"expected brings within the 4 elements, got \["):
        gathering(torch.ones(4), part)
    with pytest.raises(ValueError, match=r"expected takes within the 4 elements, got \["):
        scattering(torch.ones(4), part, "sum", 1.0)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 2),
        torch.ones(()),
        torch.ones(8)[::2],
        torch.ones(4, dtype=torch.complex64).conj(),
        torch.ones(4, dtype=torch.complex64).conj().imag,
    ],
    ids=["flat", "scalar", "strided", "conjugated", "negated"],
)
def test_a_tensor_that_is_not_its_elements_in_a_row_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected a flat, contiguous tensor"):
        gathering(tensor, (0, 0))
    with pytest.raises(ValueError, match="expected a flat, contiguous tensor"):
        scattering(tensor, (0, 0), "sum", 1.0)


@pytest.mark.parametrize("op", ["band", "bor", "bxor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_bits_of_floats_are_not_reduced(op: str, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"op {op} has no meaning for {dtype}"):
        reducing(torch.ones(3, dtype=dtype), [(3,)], op, 1.0)
