from __future__ import annotations

import io

from rich.console import Console

from gradwire_ops.bench_network import Network
from gradwire_ops.bench_plan import Plan, PlanFlags, make_plan
from gradwire_ops.bench_row import Measurement, Row
from gradwire_ops.bench_table import table

RATE = 200_000_000


def printed(plan: Plan, network: Network | None) -> str:
    measured = Measurement(
        size_bytes=4 << 20,
        path="shared_memory",
        seconds=0.2,
        gloo_seconds=0.3,
        daemon_cpu_seconds_per_gigabyte=1.5,
        p50_seconds=None,
        p99_seconds=None,
        gloo_p50_seconds=None,
        gloo_p99_seconds=None,
    )
    row = Row(measured, plan.nodes, 1, "ring", "exact", "grpc", "float32", network)
    console = Console(file=io.StringIO(), width=200)
    console.print(table(plan, [row]))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_on_loopback_the_table_has_no_limits() -> None:
    text = printed(make_plan(PlanFlags(nodes="2")), None)
    assert "1.50 x" in text
    assert "limit" not in text


def test_in_a_laboratory_the_table_has_the_links_and_what_they_allow() -> None:
    plan = make_plan(PlanFlags(nodes="2", lab=True, rate="none,200mbit", delay="20ms"))
    assert plan.lab is not None
    text = printed(plan, Network(plan.lab, (4 << 20) / 0.1))
    for word in ("none, 200mbit", "round trip + 20.00 ms", "100.00 ms", "50%"):
        assert word in text


def test_without_a_rate_there_is_no_limit_to_show() -> None:
    plan = make_plan(PlanFlags(nodes="2", lab=True))
    assert plan.lab is not None
    text = printed(plan, Network(plan.lab, None))
    assert "limit" in text
    assert "%" not in text
