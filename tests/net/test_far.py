"""A long way between two nodes: what is under way must fill it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch

from gradwire_ops.cluster import cluster
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabPlan
from gradwire_ops.lab_probe import payload_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import gradwire

    Seats = Callable[[Sequence[str]], AbstractContextManager[list[gradwire.Session]]]

ROUND_TRIP_SECONDS = 0.024
RATE = 300_000_000
SIZE = 16 << 20
REPEATS = 4
"""In the first the connections are yet to be opened."""


def reduce(session: gradwire.Session) -> float:
    """Seconds that it took; the result is right."""
    tensor = torch.full((SIZE // 4,), session.rank + 1.0)
    began = time.perf_counter()
    session.all_reduce(tensor).wait()
    seconds = time.perf_counter() - began
    assert torch.equal(tensor, torch.full_like(tensor, 1.5))
    return seconds


@pytest.mark.case("P05")
@pytest.mark.usefixtures("delays")
def test_a_far_link_carries_half_of_what_plain_sockets_do(seats: Seats) -> None:
    plan = LabPlan(2, (RATE, RATE), ROUND_TRIP_SECONDS)
    with lab(plan) as net, cluster(2, {}, net.places) as nodes:
        plain = payload_rate(net, 0, 1)
        with seats(nodes.addresses) as sessions, ThreadPoolExecutor(2) as pool:
            seconds = min(max(pool.map(reduce, sessions)) for _ in range(REPEATS))
    # Each node has to send as much as its tensor, and to receive as much.
    assert SIZE / seconds >= plain / 2
