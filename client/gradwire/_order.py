"""What a rank asks for: a tensor to be reduced or gathered, which part of it the rank brings,
and which part of the result it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from gradwire._tensor import check_layout, describe, describe_gather, flatten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire._tensor import Described, Shape

Range: TypeAlias = tuple[int, int]
"""Elements [start, stop)."""


class Order(NamedTuple):
    """One tensor, with all that its way through the node depends on."""

    # A frozen dataclass takes a microsecond longer to make: a hundredth of a small collective.

    tensor: torch.Tensor
    """The caller's."""
    flat: torch.Tensor
    """Its elements in a row; what travels, and where the result comes back."""
    described: Described
    weight: float
    brings: Range
    """What this rank brings of `flat`. All of it, except where it is gathered."""
    takes: tuple[Range, ...]
    """What of the result is written to `flat`."""


def reducing(tensor: torch.Tensor, shapes: Sequence[Shape], op: str, weight: float) -> Order:
    """A tensor that every rank gets back whole.

    Raises TypeError or ValueError for what can't be reduced.
    """
    described = describe(tensor, shapes, op, weight)
    whole = (0, described.spec.elements)
    return Order(tensor, flatten(tensor), described, weight, whole, (whole,))


def scattering(tensor: torch.Tensor, takes: Range, op: str, weight: float) -> Order:
    """A tensor of which this rank gets the elements [start, stop) back, and no others.

    Raises TypeError or ValueError for what can't be reduced, or has no such elements.
    """
    check_layout(tensor)
    _check_range(tensor, takes, "takes")
    described = describe(tensor, [tuple(tensor.shape)], op, weight, note="scattered")
    numbers = 2 if tensor.is_complex() else 1
    part = (takes[0] * numbers, takes[1] * numbers)
    whole = (0, described.spec.elements)
    return Order(tensor, flatten(tensor), described, weight, whole, (part,))


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


def _no_bytes() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _check_range(tensor: torch.Tensor, part: Range, name: str) -> None:
    if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"expected a flat, contiguous tensor, got shape {tuple(tensor.shape)} with strides"
            f" {tensor.stride()}; view(-1), contiguous() or resolve_conj() it"
        )
    start, stop = part
    if not 0 <= start <= stop <= tensor.numel():
        raise ValueError(
            f"expected {name} within the {tensor.numel()} elements, got [{start}, {stop})"
        )
