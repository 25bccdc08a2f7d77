"""One line of a benchmark's table. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gradwire_ops.bench_network import NO_NETWORK

if TYPE_CHECKING:
    from gradwire_ops.bench_network import Network


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the ranks found for one size, ours and gloo in the same run."""

    size_bytes: int
    path: str
    seconds: float
    gloo_seconds: float
    daemon_cpu_seconds_per_gigabyte: float
    """CPU time of one daemon for 1e9 bytes of tensor, without that of its ranks."""
    p50_seconds: float | None
    p99_seconds: float | None
    gloo_p50_seconds: float | None
    gloo_p99_seconds: float | None
    """Of calls that rank 0 timed one by one; None for tensors too large for that."""
    wire_bytes: float = 0.0
    """What a node sends to other nodes for one all-reduce, on average."""


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement and what it was made with.

    Bandwidths are nccl-tests': algbw is size over time; busbw is what each rank's link would
    have to carry in an ideal all-reduce, so that it can be compared across numbers of ranks.
    """

    measured: Measurement
    nodes: int
    ranks_per_node: int
    schedule: str
    wire: str
    transport: str
    dtype: str
    network: Network | None = None
    """Of the laboratory, if that is where it was."""
    op: str = "sum"
    via: str = "session"
    """How the ranks got at us: session, or pg."""

    @property
    def algbw_bytes_per_second(self) -> float:
        """Size over time."""
        return self.measured.size_bytes / self.measured.seconds

    @property
    def busbw_bytes_per_second(self) -> float:
        """algbw x 2(n-1)/n for n ranks."""
        ranks = self.nodes * self.ranks_per_node
        return self.algbw_bytes_per_second * 2 * (ranks - 1) / ranks

    @property
    def speedup_vs_gloo(self) -> float:
        """Above 1 we are faster."""
        return self.measured.gloo_seconds / self.measured.seconds

    @property
    def wire_share(self) -> float:
        """What a node sends, of what it would have to send in fp32, exactly."""
        exact = 2 * (self.nodes - 1) / self.nodes * self.measured.size_bytes
        return self.measured.wire_bytes / exact if exact else 0.0

    @property
    def limit_seconds(self) -> float | None:
        """What the links allow for what this wire sends; None where they have no limit."""
        limit = self.network.limit_seconds(self.measured.size_bytes) if self.network else None
        return limit if limit is None or self.wire == "exact" else limit * self.wire_share

    @property
    def efficiency(self) -> float | None:
        """The limit over our time. A tensor that fits into a link's burst may exceed 1."""
        limit = self.limit_seconds
        return None if limit is None else limit / self.measured.seconds

    def to_dict(self) -> dict[str, object]:
        """An element of `gradwire bench --json`."""
        return {
            **asdict(self.measured),
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "schedule": self.schedule,
            "wire": self.wire,
            "transport": self.transport,
            "dtype": self.dtype,
            "op": self.op,
            "via": self.via,
            "algbw_bytes_per_second": self.algbw_bytes_per_second,
            "busbw_bytes_per_second": self.busbw_bytes_per_second,
            "speedup_vs_gloo": self.speedup_vs_gloo,
            **(self.network.to_dict() if self.network else NO_NETWORK),
            "limit_seconds": self.limit_seconds,
            "efficiency": self.efficiency,
        }
