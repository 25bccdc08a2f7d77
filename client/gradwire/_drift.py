"""Whether the ranks' replicas are still the same: digests of their parameters, compared."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
from crc32c import crc32c

from gradwire._errors import DriftError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradwire._names import Names

EVERY = 100
"""Steps between two looks, where nothing else is said."""


class Verifier:
    """Compares the parameters of models that are watched, every so many steps."""

    def __init__(self, every: int, names: Names, rank: int, world_size: int) -> None:
        """`every` 0: never."""
        self._every = every
        self._names = names
        self._rank = rank
        self._world_size = world_size

    def is_due(self, step: int) -> bool:
        """This step's parameters are to be compared."""
        return self._every > 0 and step % self._every == 0

    def digests(self, *, counts: bool) -> tuple[torch.Tensor, tuple[int, int]]:
        """A row for all ranks' digests, and which part of it is this one's.

        A rank that does not count has run out of batches: its parameters are not compared.
        """
        mine = [int(counts), *(_digest(each) for _, each in self._names.items())]
        row = torch.zeros(self._world_size * len(mine), dtype=torch.int64)
        part = (self._rank * len(mine), (self._rank + 1) * len(mine))
        row[part[0] : part[1]] = torch.tensor(mine)
        return row, part

    def check(self, row: torch.Tensor, step: int, who: Callable[[int], str]) -> None:
        """Raises DriftError unless all ranks that count have the same digests."""
        all_ranks = [tuple(each) for each in row.view(self._world_size, -1).tolist()]
        ranks = [rank for rank, each in enumerate(all_ranks) if each[0]]
        digests = {rank: all_ranks[rank][1:] for rank in ranks}
        right = _most_common([digests[rank] for rank in ranks])
        differing = [rank for rank in ranks if digests[rank] != right]
        if not differing:
            return
        first = min(_first_difference(digests[rank], right) for rank in differing)
        name, parameter = self._names.items()[first]
        shape = "x".join(map(str, parameter.shape)) or "scalar"
        those = ", ".join(map(who, differing))
        raise DriftError(
            f"step {step}: the parameters of {those} differ from those of the other ranks,"
            f" first in {name} [{shape}]; what has changed them since they were equal? The"
            " replicas train different models from there: go back to a checkpoint"
        )


def _digest(parameter: torch.Tensor) -> int:
    if not parameter.numel():
        return 0
    flat = parameter.detach().cpu().contiguous().view(-1)
    # A scalar in a row, since only rows can be seen as bytes.
    return int(crc32c(flat.view(torch.uint8).numpy().data))


def _most_common(digests: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """What most ranks have; of several, the lowest rank's."""
    counted = Counter(digests)
    return max(counted, key=lambda each: (counted[each], -digests.index(each)), default=())


def _first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        index for index, pair in enumerate(zip(one, other, strict=True)) if len({*pair}) > 1
    )
