"""Where a session sits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session sits."""

    rank: int
    world_size: int
    node: int
    nodes: int
    generation: str
    daemon: str
    local_ranks: tuple[int, ...]
    """Of this node."""
    workers: int
    """Of each node's daemon."""
    timeout: float
    """Seconds."""
