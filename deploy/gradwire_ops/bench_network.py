"""The network of a benchmark in a laboratory, and what can't be faster on it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire_ops.lab_plan import format_rate, payload_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_ops.lab_plan import LabPlan

LEAST_SHARE, MOST_SHARE = 0.97, 1.01
"""Of what a link can carry in theory: beyond these a measurement is doubtful."""


def limit_seconds(size_bytes: int, payload_rates: Sequence[float | None]) -> float | None:
    """No exact all-reduce of this size between these nodes takes less time.

    For each node the payload rate of its links is given, in bytes per second each way; None: no
    limit. For M nodes, with rates B, it is the larger one of

    - S / B for the slowest node. Where the final sum of an element is first known elsewhere, a
      node has to send its own part of it and to receive the sum; where it is first known to the
      node itself, it has to receive the others' part and to send the sum. Either way every
      element passes its link once in each direction.
    - 2 (M - 1) S / (the sum of all B), where all have a limit. The M - 1 others have each sent
      a message before one node can know the sum, and M - 1 more have to tell them.

    A node that completes a share x of the tensor sends and receives (1 + (M - 2) x) S, so there
    are shares that reach the bound. With equal rates it is 2 (M - 1) / M x S / B.
    """
    rates = [rate for rate in payload_rates if rate is not None]
    if not rates:
        return None
    slowest = size_bytes / min(rates)
    if len(rates) < len(payload_rates):
        return slowest
    return max(slowest, 2 * (len(rates) - 1) * size_bytes / sum(rates))


@dataclass(frozen=True, slots=True)
class Network:
    """A laboratory as it was asked for, and as it was found."""

    plan: LabPlan
    payload_bytes_per_second: float | None
    """What a plain TCP socket carried over one link of the slowest node; None: no limit."""

    @property
    def rate_bits_per_second(self) -> int | list[int | None] | None:
        """Of each link; a list, one for each node, only where they differ."""
        rates = self.plan.all_rates
        return rates[0] if len(set(rates)) == 1 else list(rates)

    def limit_seconds(self, size_bytes: int) -> float | None:
        """See limit_seconds above; a node may use all of its interfaces at once."""
        slowest = _slowest(self.plan)
        if slowest is None or self.payload_bytes_per_second is None:
            return None
        share = self.payload_bytes_per_second / slowest * self.plan.interfaces
        rates = [None if rate is None else rate * share for rate in self.plan.all_rates]
        return limit_seconds(size_bytes, rates)

    def doubts(self) -> str | None:
        """What is wrong with the measured payload rate, if anything."""
        slowest = _slowest(self.plan)
        if slowest is None or self.payload_bytes_per_second is None:
            return None
        possible = payload_share(self.plan.mtu)
        share = self.payload_bytes_per_second * 8 / slowest
        found = f"a plain socket carried {share:.3f} of {format_rate(slowest)}"
        if share > MOST_SHARE * possible:
            return (
                f"{found}, more than the {possible:.3f} that fit: the limits here are too low"
            )
        if share < LEAST_SHARE * possible:
            return (
                f"{found}, less than the {possible:.3f} that fit: this machine is too busy or"
                " too slow for the rate, and the times show that, too, not the network alone"
            )
        return None

    def to_dict(self) -> dict[str, object]:
        """Its part of an element of `gradwire bench --json`."""
        return {
            "rate_bits_per_second": self.rate_bits_per_second,
            "delay_seconds": self.plan.delay_seconds,
            "mtu_bytes": self.plan.mtu,
            "interfaces": self.plan.interfaces,
            "payload_bytes_per_second": self.payload_bytes_per_second,
        }


NO_NETWORK: dict[str, object] = {
    "rate_bits_per_second": None,
    "delay_seconds": None,
    "mtu_bytes": None,
    "interfaces": None,
    "payload_bytes_per_second": None,
}
"""Network.to_dict outside of a laboratory."""


def _slowest(plan: LabPlan) -> int | None:
    return min((rate for rate in plan.all_rates if rate is not None), default=None)
