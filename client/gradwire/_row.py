"""Tensors in a row: what c10d hands over, as the session takes it.

The session wants flat, contiguous memory of the host. Where a tensor is that already, its own
memory is used; else there is a copy, which `fill` writes and `deliver` reads.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from gradwire import _staging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire._order import Range


class Row:
    """Tensors of one dtype, one after the other; complex numbers are two real ones each."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, own: bool = False) -> None:
        """With own, the row is a copy in any case. Raises TypeError or NotImplementedError."""
        check(tensors)
        self._tensors = tensors
        stops = list(accumulate(map(_numbers, tensors), initial=0))
        self.ranges: list[Range] = list(pairwise(stops))
        """Where in the row each tensor lies."""
        direct = None if own else _direct(tensors)
        self.is_copy = direct is None
        self.flat = _staging.row(tensors[0], stops[-1]) if direct is None else direct

    def fill(self, index: int = 0) -> Row:
        """Copy a tensor into the row, unless it lies there."""
        if self.is_copy:
            self.put(index, self._tensors[index])
        return self

    def fill_all(self) -> Row:
        """Copy all tensors into the row, unless they lie there."""
        for index in range(len(self._tensors)):
            self.fill(index)
        return self

    def put(self, index: int, tensor: torch.Tensor) -> None:
        """Copy this tensor to where the one with that index lies."""
        self.put_at(self.ranges[index][0], tensor)

    def put_at(self, start: int, tensor: torch.Tensor) -> None:
        """Copy this tensor into the row, from there on, unless it lies there."""
        source = _real(tensor.detach().resolve_conj().resolve_neg())
        part = self.flat[start : start + source.numel()]
        if source.numel() and source.data_ptr() != part.data_ptr():
            _staging.copy(part.view(source.shape), source)

    def part(self, index: int) -> torch.Tensor:
        """The tensor with this index, as a row of real numbers."""
        start, stop = self.ranges[index]
        return self.flat[start:stop]

    def deliver(self) -> None:
        """Copy the row into the tensors, unless it is their memory."""
        if self.is_copy:
            for index, tensor in enumerate(self._tensors):
                spread(self.part(index), tensor)


def spread(row: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a row of real numbers into a tensor of any kind."""
    target = tensor.detach()
    if target.is_complex():
        row = torch.view_as_complex(row.view(*target.shape, 2))
    if target.numel():
        _staging.copy(target, row.view(target.shape))


def check(tensors: Sequence[torch.Tensor]) -> None:
    """Raise TypeError or NotImplementedError for what can't lie in one row."""
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise NotImplementedError(
                f"this collective takes no tensor with layout {tensor.layout}; use sparse=False"
                " in the embedding, or tensor.to_dense()"
            )
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        names = ", ".join(sorted(map(str, dtypes))) or "none"
        raise TypeError(f"expected tensors of one dtype, got {names}")


def _direct(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The tensors' own memory, if they lie in it one after the other."""
    first = tensors[0]
    if first.device.type != "cpu" or not all(map(_plain, tensors)):
        return None
    if len(tensors) == 1:
        return _real(first.detach()).view(-1) if first.numel() else None
    place, end = first.data_ptr(), first.untyped_storage()
    for tensor in tensors:
        if tensor.data_ptr() != place or tensor.device != first.device:
            return None
        place += tensor.nbytes
    if place > end.data_ptr() + end.nbytes() or place == first.data_ptr():
        return None
    count = sum(tensor.numel() for tensor in tensors)
    whole = torch.as_strided(first.detach(), (count,), (1,), first.storage_offset())
    return _real(whole).view(-1)


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _numbers(tensor: torch.Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)
