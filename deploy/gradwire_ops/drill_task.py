"""What a rank of a drill is told; imports no torch, which the drill itself can do without."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection


@dataclass(frozen=True, slots=True)
class Task:
    """A rank's part of a job."""

    rank: int
    world_size: int
    daemon: str
    store: str
    """File of torch's store."""
    log: str
    seed: int
    steps: int
    elements: tuple[int, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """GRADWIRE_* variables."""


def serve(task: Task, words: Connection) -> None:
    """In the rank's own process: see drill_rank."""
    from gradwire_ops import drill_rank

    drill_rank.serve(task, words)
