"""What a step will cost, from what the links carry. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_ops.doctor.facts import Host, Link

SMALLER = {"exact": 1.0, "bf16": 2.0, "int8": 3.9}
"""By how much each wire makes fp32 smaller."""
FAR_SECONDS = 0.004
"""From such a round trip on a link has four connections by itself."""
UNEQUAL = 0.7


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one all-reduce of a whole model's gradients."""

    seconds: dict[str, float]
    """By wire: no less than this."""
    settings: list[str]
    """What to set, and why."""


def forecast(hosts: Sequence[Host], links: Sequence[Link], model_bytes: int) -> Forecast | None:
    """2 (M - 1) / M x S / B over the slowest node, and a round trip for each phase: the bound
    of a ring, or of direct exchange, on M nodes (Patarasuk and Yuan, 2009). None on one node.
    """
    good = [link for link in links if link.rate > 0]
    if len(hosts) < 2 or not good:
        return None
    nodes = len(hosts)
    slowest = min(link.rate for link in good)
    farthest = max(link.round_trip for link in good)
    moved = 2 * (nodes - 1) / nodes * model_bytes
    seconds = {
        wire: moved / smaller / slowest + 2 * farthest for wire, smaller in SMALLER.items()
    }
    return Forecast(seconds, _settings(good, farthest, seconds))


def _settings(links: Sequence[Link], farthest: float, seconds: dict[str, float]) -> list[str]:
    advice = []
    # A node is as fast as its best link; the others' ways to a slow one are slow, too.
    best: dict[str, float] = {}
    for link in links:
        for name in (link.source, link.target):
            best[name] = max(link.rate, best.get(name, 0.0))
    fastest = max(best.values())
    advice += [
        f"on {name}: GRADWIRE_BANDWIDTH={8 * rate / 1e6:.0f}mbit, since the others have"
        f" {8 * fastest / 1e6:.0f}"
        for name, rate in sorted(best.items())
        if rate < UNEQUAL * fastest
    ]
    if farthest >= FAR_SECONDS:
        advice.append(
            f"the round trip of {1e3 * farthest:.0f} ms: large buckets (bucket_cap_mb=100)"
            " amortise it; connections are chosen by themselves"
        )
    if seconds["exact"] > 0.1:
        advice.append(
            "if the backward pass does not hide that: GRADWIRE_WIRE=bf16, or int8 where its"
            " error does no harm"
        )
    return advice
