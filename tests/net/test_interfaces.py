"""Where nodes have several interfaces, connections between them use all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gradwire_ops import query
from gradwire_ops.cluster import cluster
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import gradwire
    from gradwire_ops.lab import Node

    Seats = Callable[[Sequence[str]], AbstractContextManager[list[gradwire.Session]]]

RATE = 200_000_000
SIZE = 32 << 20


def carried(node: Node) -> dict[str, tuple[int, int]]:
    """Bytes received and sent so far, by interface."""
    text = node.call(lambda: Path("/proc/thread-self/net/dev").read_text())
    fields = (line.split(":") for line in text.splitlines() if ":" in line)
    figures = {name.strip(): values.split() for name, values in fields}
    return {each: (int(figures[each][0]), int(figures[each][8])) for each in node.interfaces}


def test_a_tensor_travels_over_both_interfaces(seats: Seats) -> None:
    plan = LabPlan(2, (RATE, RATE), interfaces=2)
    with lab(plan) as net, cluster(2, {}, net.places) as nodes:
        for node, daemon in zip(net.nodes, nodes.addresses, strict=True):
            told = query.describe(daemon).addresses
            assert [each.rpartition(":")[0] for each in told] == list(node.addresses)
        with seats(nodes.addresses) as sessions:
            # The other connections are opened once a large share has passed.
            reduce(sessions)
            before = carried(net.nodes[0])
            reduce(sessions)
            after = carried(net.nodes[0])
    for interface in net.nodes[0].interfaces:
        for old, new in zip(before[interface], after[interface], strict=True):
            assert new - old >= SIZE / 4


def reduce(sessions: Sequence[gradwire.Session]) -> None:
    """All of them a tensor of SIZE, with the right result."""
    tensors = [torch.full((SIZE // 4,), each.rank + 1.0) for each in sessions]
    waiting = [one.all_reduce(each) for one, each in zip(sessions, tensors, strict=True)]
    mean = (len(sessions) + 1) / 2
    for each in waiting:
        assert torch.equal(each.wait(), torch.full((SIZE // 4,), mean))
