"""A job that is explored: what its ranks bring, and what the sum of that is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradwire_proto.chunks import cut, share_ranges
from gradwire_server.testing_job import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

ELEMENTS = 23
"""Two chunks, of which the second is short; neither can be cut evenly."""


@dataclass(frozen=True)
class Course:
    """What is explored: a job, and a seed for its delays."""

    shape: tuple[int, ...]
    schedule: str
    seed: int

    @property
    def world(self) -> int:
        return sum(self.shape)

    @property
    def places(self) -> list[range]:
        starts = [sum(self.shape[:node]) for node in range(len(self.shape))]
        return [range(at, at + n) for at, n in zip(starts, self.shape, strict=True)]


def tensor(course: Course, rank: int, sequence: int) -> torch.Tensor:
    """In the even rounds whole numbers, four bits a rank: who counts twice is seen. In the
    others numbers whose sum depends on the order.
    """
    if sequence % 2 == 0:
        return torch.full((ELEMENTS,), 1 << 4 * rank, dtype=torch.int32)
    draw = torch.Generator().manual_seed(1000 * course.seed + 10 * sequence + rank)
    return torch.randn(ELEMENTS, generator=draw) * 10.0 ** (rank % 3)


def reference(course: Course, sequence: int) -> torch.Tensor:
    """The sum in the order that ARCHITECTURE.md promises."""
    brought = [tensor(course, rank, sequence) for rank in range(course.world)]
    nodes = [functools.reduce(torch.add, (brought[rank] for rank in p)) for p in course.places]
    total = torch.empty_like(nodes[0])
    chunks = cut(ELEMENTS, total.itemsize, CHUNK_BYTES)
    for chunk in range(chunks.count):
        start, stop = chunks.range(chunk)
        parts = [node[start:stop] for node in nodes]
        shares = len(nodes) if course.schedule in ("ring", "direct") else 1
        for share, (first, last) in enumerate(share_ranges(shares, stop - start, ())):
            summed = in_order(course.schedule, [part[first:last] for part in parts], share)
            total[start + first : start + last] = summed
    return total


def in_order(schedule: str, parts: Sequence[torch.Tensor], share: int) -> torch.Tensor:
    if schedule == "tree":
        return down_the_tree(parts, 0)
    first = share if schedule in ("ring", "direct") else 0
    return functools.reduce(torch.add, [*parts[first:], *parts[:first]])


def down_the_tree(parts: Sequence[torch.Tensor], node: int) -> torch.Tensor:
    total = parts[node]
    for child in (2 * node + 1, 2 * node + 2):
        if child < len(parts):
            total = total + down_the_tree(parts, child)
    return total
