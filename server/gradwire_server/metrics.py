"""Every metric of the daemon, declared once. Base units; labels are bounded."""

from __future__ import annotations

import platform
from collections import Counter as TallyOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gradwire_server.tracing import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from prometheus_client import Metric

_DIRECTIONS = ("sent", "received")

_ROUND_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
    10, 30, 60,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is exchanged with one peer: bytes, and frames that were damaged on the way."""

    sent: Counter
    received: Counter
    resent: Counter
    damaged: Counter


class _Refresh(Collector):
    """Has what is counted elsewhere brought up to date; registered before all metrics."""

    def __init__(self, calls: set[Callable[[], None]]) -> None:
        self._calls = calls

    def collect(self) -> Iterable[Metric]:
        """No metrics of its own."""
        for call in tuple(self._calls):
            call()
        return []


class _Stragglers(Collector):
    """A score for each rank that has a seat, and for no other."""

    def __init__(self, jobs: Mapping[object, Callable[[], Mapping[int, float]]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterable[Metric]:
        """Of several jobs with a rank of one number, the highest."""
        family = GaugeMetricFamily(
            "gradwire_rank_straggling",
            "Part of the time, lately, that others have waited for a local rank: 0 to 1.",
            labels=["rank"],
        )
        highest: dict[int, float] = {}
        for scores in tuple(self._jobs.values()):
            for rank, score in scores().items():
                highest[rank] = max(score, highest.get(rank, 0.0))
        for rank, score in sorted(highest.items()):
            family.add_metric([str(rank)], score)
        return [family]


class Metrics:
    """The daemon's metrics in a registry of their own."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        self.registry = registry
        self.recorder = Recorder()
        """For traces: what metrics say in sum, span by span."""
        self.before_scrape: set[Callable[[], None]] = set()
        """Called, in any thread, when somebody reads the metrics."""
        registry.register(_Refresh(self.before_scrape))
        self.straggling: dict[object, Callable[[], Mapping[int, float]]] = {}
        """Of each job the scores of its local ranks; called in any thread."""
        registry.register(_Stragglers(self.straggling))
        self._holds: TallyOf[str] = TallyOf()
        self._schedules: dict[str, tuple[Counter, Histogram]] = {}
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        build = Info("gradwire_build", "The running daemon.", registry=registry)
        build.info({"version": version, "python": platform.python_version()})
        self.rounds = Counter(
            "gradwire_rounds_total",
            "Chunks reduced, by the schedule between the nodes.",
            ["schedule"],
            registry=registry,
        )
        self.round_seconds = Histogram(
            "gradwire_round_seconds",
            "From the last local contribution of a chunk to its result.",
            ["schedule"],
            buckets=_ROUND_BUCKETS,
            registry=registry,
        )
        self.peer_bytes = Counter(
            "gradwire_peer_bytes_total",
            "Bytes exchanged with the daemon at an address.",
            ["peer", "direction"],
            registry=registry,
        )
        resent = Counter(
            "gradwire_frames_resent_total",
            "Frames sent again, since one was damaged on the way to the daemon at an address.",
            ["peer"],
            registry=registry,
        )
        damaged = Counter(
            "gradwire_frames_damaged_total",
            "Frames that came damaged from the daemon at an address, and were asked for again.",
            ["peer"],
            registry=registry,
        )
        self._frames = resent, damaged
        self.local_bytes = Counter(
            "gradwire_local_bytes_total",
            "Tensor bytes taken from and given to this node's ranks.",
            ["direction"],
            registry=registry,
        )
        # Looking a label up costs more than adding to it; these are added to for every chunk.
        self.bytes_in = self.local_bytes.labels(direction="in")
        self.bytes_out = self.local_bytes.labels(direction="out")
        self.ranks_joined = Gauge(
            "gradwire_ranks_joined", "Ranks that have a seat now.", registry=registry
        )
        self.jobs = Gauge("gradwire_jobs", "Jobs that have a rank here now.", registry=registry)
        self.residuals_dropped = Counter(
            "gradwire_residuals_dropped",
            "What a lossy wire had lost of a tensor, and was not made good: the tensor has"
            " another size, or nothing used it.",
            registry=registry,
        )
        self.errors = Counter(
            "gradwire_errors_total", "What went wrong, by kind.", ["kind"], registry=registry
        )
        self.stalled_rounds = Gauge(
            "gradwire_stalled_rounds",
            "Collectives that wait longer than the warning period.",
            registry=registry,
        )

    def hold_peer(self, address: str) -> Traffic:
        """The counters of a peer, which stay until each hold is released."""
        self._holds[address] += 1
        sent, received = (
            self.peer_bytes.labels(peer=address, direction=way) for way in _DIRECTIONS
        )
        resent, damaged = (each.labels(peer=address) for each in self._frames)
        return Traffic(sent, received, resent, damaged)

    def release_peer(self, address: str) -> None:
        """A job that talked to this peer has ended; with the last one its series go."""
        self._holds[address] -= 1
        if not self._holds[address]:
            del self._holds[address]
            for way in _DIRECTIONS:
                self.peer_bytes.remove(address, way)
            for each in self._frames:
                each.remove(address)

    def round_done(self, schedule: str, seconds: float) -> None:
        """Count a round."""
        if schedule not in self._schedules:
            self._schedules[schedule] = (
                self.rounds.labels(schedule=schedule),
                self.round_seconds.labels(schedule=schedule),
            )
        count, duration = self._schedules[schedule]
        count.inc()
        duration.observe(seconds)

    def rounds_done(self, schedule: str, rounds: int, seconds: float) -> None:
        """Count rounds of which only the sum of their times is known: each gets the mean."""
        for _ in range(rounds):
            self.round_done(schedule, seconds / rounds)
