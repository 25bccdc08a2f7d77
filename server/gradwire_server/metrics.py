"""Every metric of the daemon, declared once. Base units; labels are bounded."""

from __future__ import annotations

import platform
from bisect import bisect_left
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gradwire_proto.stages import STAGES
from gradwire_server.meters import CodecMeter, JobFigures, Payload, RankFigures
from gradwire_server.series import Figure, Kind, Series
from gradwire_server.tracing import Recorder
from gradwire_server.transport.credentials import Plain
from gradwire_server.transport.watch import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

_ROUND_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5,
    10, 30, 60,
)  # fmt: skip


class _Refresh(Collector):
    """Has what is counted elsewhere brought up to date; registered before all metrics."""

    def __init__(self, calls: set[Callable[[], None]]) -> None:
        self._calls = calls

    def collect(self) -> Iterable[Metric]:
        """No metrics of its own."""
        for call in tuple(self._calls):
            call()
        return []


class _Durations(Histogram):
    """One that is told of many at once: where nobody has read the metrics of a job for an hour,
    there are millions, and they are counted on the event loop.
    """

    def observe_alike(self, amount: float, times: int) -> None:
        """As so many calls of `observe`."""
        self._sum.inc(amount * times)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(times)


SLOW_SECONDS = 0.1
"""Rounds that take longer leave an example of themselves beside the histogram."""

MOST_LETTERS = 64
"""Of a generation's name there: OpenMetrics allows 128 for names and values together."""

_LINKS = (
    Figure[Status](
        "gradwire_peer_bytes",
        "Bytes exchanged with the daemon at an address, as they cross the wire.",
        Kind.COUNTER,
        lambda link: link.bytes_sent,
        {"direction": "sent"},
    ),
    Figure[Status](
        "gradwire_peer_bytes",
        "",
        Kind.COUNTER,
        lambda link: link.bytes_received,
        {"direction": "received"},
    ),
    Figure[Status](
        "gradwire_frames_resent",
        "Frames sent again, since one was damaged on the way to the daemon at an address.",
        Kind.COUNTER,
        lambda link: link.resent,
    ),
    Figure[Status](
        "gradwire_frames_damaged",
        "Frames that came damaged from the daemon at an address, and were asked for again.",
        Kind.COUNTER,
        lambda link: link.damaged,
    ),
    Figure[Status](
        "gradwire_link_up",
        "Whether the daemon at an address is linked: 1, or 0 while it has to be waited for.",
        Kind.LOWEST,
        lambda link: link.connected,
    ),
    Figure[Status](
        "gradwire_link_reopened",
        "Streams to or from the daemon at an address that broke and were opened again.",
        Kind.COUNTER,
        lambda link: link.reopened,
    ),
    Figure[Status](
        "gradwire_link_bandwidth_bytes_per_second",
        "What large shares from the daemon at an address reached lately, on their way here.",
        Kind.HIGHEST,
        lambda link: link.bandwidth,
    ),
    Figure[Status](
        "gradwire_link_round_trip_seconds",
        "To the daemon at an address and back, beside whatever is large.",
        Kind.LOWEST,
        lambda link: link.round_trip_seconds,
    ),
    Figure[Status](
        "gradwire_link_queued_bytes",
        "Payload that waits to be written to the daemon at an address.",
        Kind.TOTAL,
        lambda link: link.queued_bytes,
    ),
)

_PAYLOADS = (
    Figure[Payload](
        "gradwire_peer_payload_bytes",
        "Bytes of shares exchanged with the daemon at an address, before they are encoded.",
        Kind.COUNTER,
        lambda payload: payload.sent,
        {"direction": "sent"},
    ),
    Figure[Payload](
        "gradwire_peer_payload_bytes",
        "",
        Kind.COUNTER,
        lambda payload: payload.received,
        {"direction": "received"},
    ),
)

_RANKS = (
    Figure[RankFigures](
        "gradwire_rank_straggling",
        "Part of the time, lately, that others have waited for a local rank: 0 to 1.",
        Kind.HIGHEST,
        lambda rank: rank.straggling,
    ),
    Figure[RankFigures](
        "gradwire_rank_last_arrivals",
        "How often a local rank was the last of its node to hand a collective in; where there"
        " are over 64 a second, of the latest 64.",
        Kind.COUNTER,
        lambda rank: rank.last_arrivals,
    ),
    Figure[RankFigures](
        "gradwire_rank_steps",
        "Training steps that a local rank has begun, as its DDP hook counts them.",
        Kind.COUNTER,
        lambda rank: rank.steps,
    ),
    Figure[RankFigures](
        "gradwire_rank_communicating_seconds",
        "Time in which a local rank had a collective under way.",
        Kind.COUNTER,
        lambda rank: rank.communicating,
    ),
)

_CODECS = (
    Figure[CodecMeter](
        "gradwire_codec_raw_bytes",
        "Bytes that were encoded for a wire.",
        Kind.COUNTER,
        lambda codec: codec.raw_bytes,
    ),
    Figure[CodecMeter](
        "gradwire_codec_encoded_bytes",
        "Bytes that these became.",
        Kind.COUNTER,
        lambda codec: codec.encoded_bytes,
    ),
    Figure[CodecMeter](
        "gradwire_codec_error_ratio",
        "What a wire lost, to what there was, of a share that was looked at: a ratio of norms.",
        Kind.HIGHEST,
        lambda codec: codec.error_ratio,
    ),
)

_FLIGHT = (
    Figure[JobFigures](
        "gradwire_in_flight_bytes",
        "Room that the chunks of rounds under way take.",
        Kind.TOTAL,
        lambda job: job.in_flight_bytes,
    ),
    Figure[JobFigures](
        "gradwire_in_flight_limit_bytes",
        "Room for chunks of rounds under way, of all jobs.",
        Kind.TOTAL,
        lambda job: job.in_flight_limit_bytes,
    ),
    Figure[JobFigures](
        "gradwire_ranks_missing",
        "Local ranks of jobs here that have not joined.",
        Kind.TOTAL,
        lambda job: job.missing_ranks,
    ),
)


_CERTIFICATES = (
    Figure[Plain](
        "gradwire_certificate_expiry_timestamp_seconds",
        "When the certificate that the daemon shows expires, in Unix time; absent where it has"
        " none.",
        Kind.LOWEST,
        lambda shown: shown.expires,
    ),
)


class Metrics:
    """The daemon's metrics in a registry of their own."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        self.registry = registry
        self.recorder = Recorder()
        """For traces: what metrics say in sum, span by span."""
        self.before_scrape: set[Callable[[], None]] = set()
        """Called, in any thread, when somebody reads the metrics."""
        registry.register(_Refresh(self.before_scrape))
        # Of each the text of its first figure counts.
        self.links = Series("peer", _LINKS)
        self.payloads = Series("peer", _PAYLOADS)
        self.ranks = Series("rank", _RANKS)
        self.codecs = Series("wire", _CODECS)
        self.flight = Series("", _FLIGHT)
        self.certificates = Series("", _CERTIFICATES, always=False)
        everything = self.links, self.payloads, self.ranks, self.codecs, self.flight
        for each in (*everything, self.certificates):
            registry.register(each)
        self._schedules: dict[str, tuple[Counter, _Durations]] = {}
        self.build = _describe_process(registry, version)
        self.rounds = Counter(
            "gradwire_rounds_total",
            "Chunks reduced, by the schedule between the nodes.",
            ["schedule"],
            registry=registry,
        )
        self.round_seconds = _Durations(
            "gradwire_round_seconds",
            "From the last local contribution of a chunk to its result.",
            ["schedule"],
            buckets=_ROUND_BUCKETS,
            registry=registry,
        )
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
        self.resumes = Counter(
            "gradwire_resumes_total",
            "Generations taken up again here, since a daemon of theirs was lost.",
            registry=registry,
        )
        self.jobs = Gauge("gradwire_jobs", "Jobs that have a rank here now.", registry=registry)
        self.residuals_dropped = Counter(
            "gradwire_residuals_dropped",
            "What a lossy wire had lost of a tensor, and was not made good: the tensor has"
            " another size, or nothing used it.",
            registry=registry,
        )
        self.step_seconds = Counter(
            "gradwire_step_seconds_total",
            "Where the time of rounds went, by stage: see below.",
            ["stage"],
            registry=registry,
        )
        self.stage_seconds = {each: self.step_seconds.labels(stage=each) for each in STAGES}
        self.ledger_seconds = Counter(
            "gradwire_ledger_seconds_total",
            "Time of rounds, from the first local part to the first local result: what the"
            " stages of gradwire_step_seconds_total add up to.",
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

    def job_begun(self, attempt: int) -> None:
        """A generation begins here, or is taken up again."""
        self.jobs.inc()
        if attempt:
            self.resumes.inc()

    def round_done(
        self, schedule: str, seconds: float, of: tuple[str, int] | None = None
    ) -> None:
        """Count a round. `of`: its generation and number, to be looked up where it was slow."""
        count, duration = self._of(schedule)
        count.inc()
        if of is None or seconds < SLOW_SECONDS:
            duration.observe(seconds)
        else:
            generation, number = of
            example = {"generation": generation[:MOST_LETTERS], "round": str(number)}
            duration.observe(seconds, example)

    def rounds_done(self, schedule: str, rounds: int, seconds: float) -> None:
        """Count rounds of which only the sum of their times is known: each gets the mean."""
        if rounds > 0:
            count, duration = self._of(schedule)
            count.inc(rounds)
            duration.observe_alike(seconds / rounds, rounds)

    def _of(self, schedule: str) -> tuple[Counter, _Durations]:
        if schedule not in self._schedules:
            self._schedules[schedule] = (
                self.rounds.labels(schedule=schedule),
                self.round_seconds.labels(schedule=schedule),
            )
        return self._schedules[schedule]


def _describe_process(registry: CollectorRegistry, version: str) -> Info:
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    build = Info("gradwire_build", "The running daemon.", registry=registry)
    build.info({"version": version, "python": platform.python_version()})
    return build
