"""One line of a benchmark's table. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured for one size, ours and gloo in the same run.

    Bandwidths are nccl-tests': algbw is size over time; busbw is what each rank's link would
    have to carry in an ideal all-reduce, so that it can be compared across numbers of ranks.
    """

    size_bytes: int
    nodes: int
    ranks_per_node: int
    schedule: str
    wire: str
    path: str
    transport: str
    dtype: str
    seconds: float
    gloo_seconds: float

    @property
    def algbw_bytes_per_second(self) -> float:
        """Size over time."""
        return self.size_bytes / self.seconds

    @property
    def busbw_bytes_per_second(self) -> float:
        """algbw x 2(n-1)/n for n ranks."""
        ranks = self.nodes * self.ranks_per_node
        return self.algbw_bytes_per_second * 2 * (ranks - 1) / ranks

    @property
    def speedup_vs_gloo(self) -> float:
        """Above 1 we are faster."""
        return self.gloo_seconds / self.seconds

    def to_dict(self) -> dict[str, object]:
        """An element of `gradwire bench --json`."""
        return {
            **asdict(self),
            "algbw_bytes_per_second": self.algbw_bytes_per_second,
            "busbw_bytes_per_second": self.busbw_bytes_per_second,
            "speedup_vs_gloo": self.speedup_vs_gloo,
        }
