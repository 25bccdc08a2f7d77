"""What a rank asks for: a tensor to be reduced or gathered, which part of it the rank brings,
and which part of the result it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from gradwire._tensor import (
    check_layout,
    describe,
    describe_gather,
    flatten,
    mark_written,
    over,
    part_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire._steps import Origin
    from gradwire._tensor import Described, Shape
    from gradwire._wires import Coded

Range: TypeAlias = tuple[int, int]
"""Elements [start, stop)."""


class Order(NamedTuple):
    """One tensor, with all that its way through the node depends on."""

    # A frozen dataclass takes a microsecond longer to make: a hundredth of a small collective.

    tensor: torch.Tensor
    """The caller's."""
    flat: torch.Tensor
    """Its elements in a row; what travels."""
    described: Described
    weight: float
    brings: Range
    """What this rank brings of `flat`. All of it, except where it is gathered."""
    takes: tuple[Range, ...]
    """What of the result is written back."""
    into: torch.Tensor | None = None
    """Where the only range is written; None for where it lies in `flat`."""
    origin: Origin | None = None
    """What it is, where a hook brought it."""
    first: int = 0
    """Which element of the whole the first of `flat` is."""

    @property
    def weighs(self) -> bool:
        """What this rank brings has a part in the result."""
        return self.weight != 0.0

    @property
    def target(self) -> tuple[torch.Tensor, int]:
        """A row, and which element of the result its first one is."""
        return (self.flat, 0) if self.into is None else (self.into, self.takes[0][0])

    def over(self, coded: Coded | None) -> Order:
        """The same over a lossy wire."""
        if coded is None:
            return self
        return self._replace(described=over(self.described, coded))

    def part(self, start: int, stop: int) -> Order:
        """The elements [start, stop) as an order of their own."""
        flat = self.flat[start:stop]
        takes = tuple(_within(each, start, stop) for each in self.takes)
        described = part_of(self.described, stop - start)
        brings = _within(self.brings, start, stop)
        into = self.into
        if into is not None:
            first, end = takes[0]
            gone = self.takes[0][0] - start
            into = into[first - gone : end - gone]
        first = self.first + start
        return Order(
            flat, flat, described, self.weight, brings, takes, into, self.origin, first
        )


def reducing(
    tensor: torch.Tensor,
    shapes: Sequence[Shape],
    op: str,
    weight: float,
    origin: Origin | None = None,
) -> Order:
    """A tensor that every rank gets back whole.

    Raises TypeError or ValueError for what can't be reduced.
    """
    described = describe(tensor, shapes, op, weight)
    whole = (0, described.spec.elements)
    return Order(tensor, flatten(tensor), described, weight, whole, (whole,), origin=origin)


def scattering(
    tensor: torch.Tensor,
    takes: Range,
    op: str,
    weight: float,
    out: torch.Tensor | None = None,
) -> Order:
    """A tensor of which this rank gets the elements [start, stop), and no others: in their
    place, or in `out`.

    Raises TypeError or ValueError for what can't be reduced, or has no such elements, and for
    an `out` that they don't fit.
    """
    check_layout(tensor)
    _check_range(tensor, takes, "takes")
    described = describe(tensor, [tuple(tensor.shape)], op, weight, note="scattered")
    numbers = 2 if tensor.is_complex() else 1
    part = (takes[0] * numbers, takes[1] * numbers)
    whole, flat = (0, described.spec.elements), flatten(tensor)
    if out is None:
        return Order(tensor, flat, described, weight, whole, (part,))
    _check_out(out, tensor, takes)
    mark_written(out)
    # It stays as it was: what autograd has of it is right.
    return Order(tensor.data, flat, described, weight, whole, (part,), flatten(out))


def gathering(tensor: torch.Tensor, brings: Range) -> Order:
    """A tensor of which this rank brings the elements [start, stop), and gets the others.

    It travels as bytes, whatever its type. Raises TypeError or ValueError for what has no such
    elements.
    """
    check_layout(tensor)
    _check_range(tensor, brings, "brings")
    described = describe_gather(tensor.dtype, tensor.numel())
    # An empty tensor may have any stride, and no view as bytes then.
    flat = tensor.detach().view(torch.uint8) if tensor.numel() else _no_bytes()
    start, stop = brings[0] * tensor.itemsize, brings[1] * tensor.itemsize
    others = ((0, start), (stop, flat.numel()))
    return Order(tensor, flat, described, 0.0, (start, stop), others)


def _within(part: Range, start: int, stop: int) -> Range:
    """What of a range lies in [start, stop), counted from there."""
    low, high = (min(max(edge, start), stop) - start for edge in part)
    return low, high


def _no_bytes() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _check_flat(tensor: torch.Tensor) -> None:
    if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"expected a flat, contiguous tensor, got shape {tuple(tensor.shape)} with strides"
            f" {tensor.stride()}; view(-1), contiguous() or resolve_conj() it"
        )


def _check_out(out: torch.Tensor, tensor: torch.Tensor, takes: Range) -> None:
    check_layout(out)
    _check_flat(out)
    start, stop = takes
    if out.dtype != tensor.dtype or out.numel() != stop - start:
        raise ValueError(
            f"expected an out of {stop - start} x {tensor.dtype}, got {out.numel()} x"
            f" {out.dtype}"
        )
    if overlap(out, tensor) and out.data_ptr() != tensor[start:].data_ptr():
        raise ValueError(
            "expected an out that shares no memory with the tensor, or is the part that this"
            " rank takes: the rest is read while results are written"
        )


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors share memory."""
    first, second = one.data_ptr(), other.data_ptr()
    return max(first, second) < min(first + one.nbytes, second + other.nbytes)


def _check_range(tensor: torch.Tensor, part: Range, name: str) -> None:
    _check_flat(tensor)
    start, stop = part
    if not 0 <= start <= stop <= tensor.numel():
        raise ValueError(
            f"expected {name} within the {tensor.numel()} elements, got [{start}, {stop})"
        )
