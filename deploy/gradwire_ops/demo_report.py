"""What the demo's ranks reported, and whether that is as promised. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ACCURACY_TOLERANCE = 0.005
"""Half a percentage point."""


@dataclass(frozen=True, slots=True)
class Communication:
    """One rank's use of Gradwire; the wire's bytes are those of its whole node."""

    rounds: int
    bytes_in: int
    seconds_waiting: float
    nodes: int
    path: str
    wire_bytes_sent: int
    wire_bytes_received: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """The last line of one rank."""

    rank: int
    node: int
    accuracy: float
    loss: float
    digest: str
    seconds: float
    communication: Communication | None

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> RankReport:
        """From the trainer's JSON object."""
        fields = {name: value for name, value in line.items() if name != "event"}
        used = fields.pop("communication")
        return cls(**fields, communication=None if used is None else Communication(**used))


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """A row of the demo's table."""

    node: int
    ranks: tuple[int, ...]
    accuracy: float
    loss: float
    wire_bytes_sent: int
    wire_bytes_received: int
    seconds_waiting: float
    """Mean over the node's ranks; part of it overlapped the backward pass."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the demo, and what came of it."""

    promise: str
    kept: bool
    evidence: str


def summarise(reports: Sequence[RankReport]) -> list[NodeSummary]:
    """One row per node, in order."""
    nodes = sorted({report.node for report in reports})
    return [_summary(node, [one for one in reports if one.node == node]) for node in nodes]


def _summary(node: int, reports: Sequence[RankReport]) -> NodeSummary:
    used = [one.communication for one in reports if one.communication is not None]
    return NodeSummary(
        node=node,
        ranks=tuple(sorted(one.rank for one in reports)),
        accuracy=min(one.accuracy for one in reports),
        loss=max(one.loss for one in reports),
        wire_bytes_sent=max((one.wire_bytes_sent for one in used), default=0),
        wire_bytes_received=max((one.wire_bytes_received for one in used), default=0),
        seconds_waiting=sum(one.seconds_waiting for one in used) / max(len(used), 1),
        seconds=max(one.seconds for one in reports),
    )


def check(ours: Sequence[RankReport], control: Sequence[RankReport]) -> list[Check]:
    """The demo's promises, each with its evidence."""
    return [_check_same_bits(ours), _check_accuracy(ours, control), _check_wire(ours)]


def _check_same_bits(ours: Sequence[RankReport]) -> Check:
    promise = "all ranks hold bit-identical parameters"
    by_digest: dict[str, list[int]] = {}
    for report in ours:
        by_digest.setdefault(report.digest, []).append(report.rank)
    if len(by_digest) == 1:
        return Check(promise, kept=True, evidence=f"SHA-256 {ours[0].digest[:16]} on each")
    groups = "; ".join(f"{digest[:16]} on {ranks}" for digest, ranks in by_digest.items())
    return Check(promise, kept=False, evidence=groups)


def _check_accuracy(ours: Sequence[RankReport], control: Sequence[RankReport]) -> Check:
    expected = control[0].accuracy
    worst = max(ours, key=lambda report: abs(report.accuracy - expected))
    return Check(
        "the accuracy is gloo's within 0.5 points",
        kept=abs(worst.accuracy - expected) <= ACCURACY_TOLERANCE,
        evidence=f"{worst.accuracy:.2%} on rank {worst.rank}, {expected:.2%} with gloo",
    )


def _check_wire(ours: Sequence[RankReport]) -> Check:
    """Without this, a job that never left its node would pass."""
    quiet = [one.node for one in summarise(ours) if not one.wire_bytes_sent]
    return Check(
        "gradients went over the wire from every node",
        kept=not quiet,
        evidence=f"none from node {quiet[0]}" if quiet else "counted by the daemons",
    )
