"""Which schedule a chunk takes: a pure function, so that all nodes and all reruns agree."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.reduce.direct import Direct
from gradwire_server.reduce.one_shot import OneShot
from gradwire_server.reduce.ring import Ring
from gradwire_server.reduce.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradwire_server.reduce.effects import Reducer

SMALL_BYTES = 128 * 1024
"""Up to this size a chunk costs its messages, not its bytes."""

MEDIUM_BYTES = 1 << 20
"""Below this size, the hops of a ring cost more than its fewer links save."""

DIRECT_NODES = range(5, 9)
"""With so many nodes, two hops with all of them beat a ring at every size; with more, each
would have too many links at work at a time."""

_REDUCERS: dict[pb.Schedule, Callable[[int, int], Reducer]] = {
    pb.SCHEDULE_RING: Ring,
    pb.SCHEDULE_TREE: Tree,
    pb.SCHEDULE_DIRECT: Direct,
    pb.SCHEDULE_ONE_SHOT: OneShot,
}

SCHEDULES: dict[str, pb.Schedule] = {
    "ring": pb.SCHEDULE_RING,
    "tree": pb.SCHEDULE_TREE,
    "direct": pb.SCHEDULE_DIRECT,
    "one-shot": pb.SCHEDULE_ONE_SHOT,
}

NAMES: dict[pb.Schedule, str] = {schedule: name for name, schedule in SCHEDULES.items()}


FEW_ROUNDINGS = (pb.SCHEDULE_DIRECT, pb.SCHEDULE_ONE_SHOT)
"""A value crosses the wire no more than twice, however many nodes there are."""


def choose_lossy(nodes: int, pinned: pb.Schedule | None) -> pb.Schedule:
    """The schedule for a chunk that is rounded whenever it crosses the wire.

    Between two nodes in one shot: each value once, and as many bytes as in a direct exchange,
    which rounds it on the way back, too. A schedule that rounds at every hop is not taken, even
    if it was asked for.
    """
    if pinned in FEW_ROUNDINGS:
        return pinned
    return pb.SCHEDULE_ONE_SHOT if nodes == 2 else pb.SCHEDULE_DIRECT


def choose(
    chunk_bytes: int, nodes: int, *, alike: bool = True, gathers: bool = False
) -> pb.Schedule:
    """The schedule for a chunk of this size on this many nodes.

    Small chunks take the fewest messages: one each way between two nodes, a tree among more.
    Large ones take the ring, where each node talks to one neighbour and the bytes are the least
    possible; between the two, and with a few nodes more, everybody to everybody in two hops.
    Where the nodes' networks are not alike, large ones go direct, too: around a ring, all have
    to send as much as the slowest. ARCHITECTURE.md has the figures.

    What is gathered is mostly brought by one node, and the others' parts are blank: between two
    nodes it goes once in one shot, and among a few, twice in a direct exchange.
    """
    if gathers and nodes == 2:
        return pb.SCHEDULE_ONE_SHOT
    if chunk_bytes <= SMALL_BYTES:
        return pb.SCHEDULE_ONE_SHOT if nodes == 2 else pb.SCHEDULE_TREE
    medium = chunk_bytes < MEDIUM_BYTES and 2 < nodes < DIRECT_NODES.stop
    few = nodes in DIRECT_NODES or (gathers and nodes < DIRECT_NODES.stop)
    if medium or few or not alike:
        return pb.SCHEDULE_DIRECT
    return pb.SCHEDULE_RING


def share_weights(bandwidths: Sequence[int]) -> tuple[Fraction, ...]:
    """Which part of a chunk each node adds up in a direct exchange, so that all end together.

    A node with the part w of S bytes sends, and receives, S + (M-2) w S: every other node's
    part of its sum, and its own part to all others. With bandwidth B that lasts as long on all
    nodes where w = (T B - 1) / (M - 2), the w being 1 in sum; a node too slow for any part
    adds up nothing, and T follows from the others. With two nodes the parts do not matter.
    """
    others = len(bandwidths) - 2
    if others < 1:
        return (Fraction(1, len(bandwidths)),) * len(bandwidths)
    active = set(range(len(bandwidths)))
    while True:
        duration = Fraction(others + len(active), sum(bandwidths[node] for node in active))
        slow = {node for node in active if duration * bandwidths[node] < 1}
        if not slow:
            break
        active -= slow
    return tuple(
        (duration * rate - 1) / others if node in active else Fraction(0)
        for node, rate in enumerate(bandwidths)
    )


def reducer(schedule: pb.Schedule, node: int, nodes: int) -> Reducer:
    """One node's part in this schedule."""
    return _REDUCERS[schedule](node, nodes)
