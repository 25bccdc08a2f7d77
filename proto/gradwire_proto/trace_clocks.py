"""Puts the clocks of several hosts on one time line, by the differences they have measured."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_proto.v1 import aggregator_pb2 as pb


def shifts(sources: Sequence[pb.TraceSource]) -> list[int | None]:
    """What each source's clock is ahead of the first one's, in nanoseconds; None: not known.

    From source to source along the fewest measurements, as each adds an error of its own.
    """
    known: list[int | None] = [None] * len(sources)
    if not sources:
        return known
    known[0] = 0
    waiting = deque([0])
    while waiting:
        here = waiting.popleft()
        for there, source in enumerate(sources):
            if known[there] is not None:
                continue
            ahead = _ahead(sources[here], source)
            if ahead is not None:
                known[there] = (known[here] or 0) + ahead
                waiting.append(there)
    return known


def _ahead(one: pb.TraceSource, other: pb.TraceSource) -> int | None:
    """What the other's clock is ahead of the one's."""
    if one.clock and one.clock == other.clock:
        return 0
    there, back = _measured(one, other), _measured(other, one)
    if there is not None and back is not None:
        # Each is wrong by half of what its own round trip was longer one way.
        return (there - back) // 2
    if there is not None:
        return there
    return None if back is None else -back


def _measured(one: pb.TraceSource, other: pb.TraceSource) -> int | None:
    """What the one says of the other's clock."""
    for job in one.jobs:
        for offset in job.offsets:
            if offset.node < len(job.nodes) and job.nodes[offset.node] == other.node_id:
                return offset.nanoseconds
    return None
