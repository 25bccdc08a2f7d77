"""Writes deploy/METRICS.md, the table of all metrics, as they are declared: `make metrics`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from gradwire_proto.stages import MEANINGS, STAGES
from gradwire_server.metrics import Metrics
from gradwire_server.series import Series

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "METRICS.md"

HEAD = """\
# Metrics

What `http://127.0.0.1:9470/metrics` says, for Prometheus. Slow rounds come with an example, its
generation and number, for who asks for OpenMetrics. `make metrics` writes this page.

Series of a peer, a rank or a wire are there while a job has it; a counter goes on where it was
when it comes back. A `peer` is the address that its daemon tells the others. With `--workers`,
all series have the label `worker`, too. `process_*` and `python_gc_*` are the process's.

| metric | type | meaning |
|---|---|---|
"""

STAGES_HEAD = """
## Stages

A round, one chunk of a collective, is in one stage at every moment from its first local part to
its first local result; so stages add up. Rounds run side by side: a second of four rounds is
four seconds. A collective that finds no free slot waits for whom the one in the slot waits;
while that one is worked on or on the wire, it is in the queue.

It has three limits. Of a collective of several chunks, each later one begins when it
has a slot. Where ranks send their tensors (`GRADWIRE_SHM=off`), a round begins when the first
part reaches the daemon: what waits in a rank for a slot is not in it. And a rank that is more
than 64 collectives ahead of the first waits since it handed in the oldest of its last 63.

| stage | in it |
|---|---|
"""


class Row(NamedTuple):
    """One metric."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def rows() -> list[Row]:
    """All metrics of the daemon's own, by name."""
    declared = vars(Metrics(CollectorRegistry(), "0")).values()
    # Of some there are children beside, which are added to so often.
    return sorted({row for each in declared for row in _read(each)})


def _read(declared: object) -> Iterator[Row]:
    if not isinstance(declared, MetricWrapperBase | Series):
        return
    for family in declared.describe():
        name = {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(
            family.type, family.name
        )
        # Nothing else says it while there is no series.
        where = family if isinstance(declared, Series) else declared
        yield Row(name, family.type, tuple(getattr(where, "_labelnames")), family.documentation)  # noqa: B009


def page() -> str:
    """All of it."""
    metrics = "".join(
        f"| `{row.name}{_braced(row.labels)}` | {row.type} | {row.text} |\n" for row in rows()
    )
    stages = "".join(f"| `{stage}` | {MEANINGS[stage]} |\n" for stage in STAGES)
    return HEAD + metrics + STAGES_HEAD + stages


def _braced(labels: tuple[str, ...]) -> str:
    return "{" + ",".join(labels) + "}" if labels else ""


if __name__ == "__main__":
    PAGE.write_text(page())
