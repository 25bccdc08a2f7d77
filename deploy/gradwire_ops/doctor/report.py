"""What was found, for people and for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from gradwire_proto.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

    from gradwire_ops.doctor.facts import Link
    from gradwire_ops.doctor.finding import Finding
    from gradwire_ops.doctor.forecast import Forecast

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "absent": "dim"}
_ORDER = ("failure", "warning", "ok", "absent")


def as_json(
    findings: Sequence[Finding], links: Sequence[Link], expected: Forecast | None
) -> str:
    """One object: findings, links, and what a step will cost."""
    document: dict[str, Any] = {
        "findings": [each.to_dict() for each in findings],
        "links": [
            {
                "source": each.source,
                "target": each.target,
                "bytes_per_second": each.rate,
                "round_trip_seconds": each.round_trip,
                "error": each.error,
            }
            for each in links
        ],
        "forecast": None
        if expected is None
        else {"seconds": expected.seconds, "settings": expected.settings},
    }
    return json.dumps(document, indent=2)


def show(console: Console, findings: Sequence[Finding], expected: Forecast | None) -> None:
    """The worst first; then what to do."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("check", "where", "verdict", "found"):
        table.add_column(heading, overflow="fold")
    for each in _sorted(findings):
        verdict = Text(each.verdict, _STYLES[each.verdict])
        table.add_row(each.check, printable(each.where), verdict, Text(printable(each.found)))
    console.print(table)
    for line in _remedies(findings):
        console.print(line, markup=False)
    if expected is not None:
        for line in _expectations(expected):
            console.print(line, markup=False)


def plot(path: Path, hosts: Sequence[str], links: Sequence[Link]) -> None:
    """A heat map of the rates, in Gbit/s. Raises ImportError without matplotlib; OSError."""
    from matplotlib.figure import Figure

    places = {name: number for number, name in enumerate(hosts)}
    rates = [[float("nan")] * len(hosts) for _ in hosts]
    for link in links:
        rates[places[link.source]][places[link.target]] = 8 * link.rate / 1e9
    figure = Figure(
        figsize=(2 + 0.8 * len(hosts), 1.5 + 0.7 * len(hosts)), layout="constrained"
    )
    axes = figure.subplots()
    image = axes.imshow(rates, vmin=0)
    axes.set_xticks(range(len(hosts)), hosts, rotation=45, ha="right")
    axes.set_yticks(range(len(hosts)), hosts)
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    for row, values in enumerate(rates):
        for column, value in enumerate(values):
            if value == value:
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white")
    figure.colorbar(image, label="Gbit/s")
    figure.savefig(path)


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: _ORDER.index(each.verdict))


def _remedies(findings: Sequence[Finding]) -> Iterator[str]:
    for each in _sorted(findings):
        if each.remedy:
            yield f"{each.check}, {printable(each.where)}: {printable(each.remedy)}"


def _expectations(expected: Forecast) -> Iterator[str]:
    times = ", ".join(f"{wire} {1e3 * each:.0f} ms" for wire, each in expected.seconds.items())
    yield f"\na step's gradients take no less than: {times}"
    yield from (f"set {each}" if "GRADWIRE" in each else each for each in expected.settings)
