"""What the daemon counts of a chain of ranks, which it does not watch round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from gradwire_server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Node  # type: ignore[import-not-found]  # pytest finds it


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Of the rounds: how many, and how long."""
    families = [*metrics.rounds.collect(), *metrics.round_seconds.collect()]
    return {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.mark.parametrize("seconds", [0.0, 0.00025, 0.2, 61.0])
def test_many_rounds_at_once_count_as_one_by_one(seconds: float) -> None:
    together, apart = (Metrics(CollectorRegistry(), "0") for _ in range(2))
    together.rounds_done("local", 3, 3 * seconds)
    for _ in range(3):
        apart.round_done("local", seconds)
    assert samples(together) == pytest.approx(samples(apart))


def test_what_nobody_read_for_long_is_counted_at_once() -> None:
    metrics = Metrics(CollectorRegistry(), "0")
    metrics.rounds_done("local", 10**12, 10.0**9)
    assert samples(metrics)["gradwire_round_seconds_count", ""] == 10**12


def test_a_rank_that_writes_nonsense_keeps_nobody_from_the_metrics(
    tmp_path: Path, node_of: Callable[..., Node]
) -> None:
    node, metrics = node_of(tmp_path, 1, alone=True), Metrics(CollectorRegistry(), "0")
    node.arena.control.resolved(0, 1, 5)
    node.daemon.count(metrics)
    node.arena.control.resolved(0, 1, -5)
    node.arena.control.take(0, 1, -1)
    node.daemon.count(metrics)
    assert (
        metrics.registry.get_sample_value("gradwire_local_bytes_total", {"direction": "in"})
        == 5
    )
    node.daemon.close(metrics)
    node.close()
