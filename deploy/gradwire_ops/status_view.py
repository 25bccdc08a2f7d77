"""A daemon's status as tables for a terminal, in the order of the status page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gradwire_ops.fitting import Column, Fitting
from gradwire_ops.sizes import format_size
from gradwire_ops.status_words import format_rate, format_time, slow_links
from gradwire_proto.stages import STAGES
from gradwire_proto.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gradwire_proto.v1 import aggregator_pb2 as pb

SILENT_SECONDS = 2
"""Of so long a silence of another node people are told."""

STRAGGLES = 0.25
"""Others wait for it for this part of the time; the status page has the same."""

RANKS = (
    Column("rank"),
    Column("node"),
    Column("host", 3),
    Column("process", 4),
    Column("state"),
    Column("path", 7),
    Column("rounds begun", 6),
    Column("straggling"),
    Column("came last", 5),
    Column("step", 1),
    Column("communication", 2),
)
LINKS = (
    Column("link to node"),
    Column("address", 3),
    Column("state"),
    Column("connections", 7),
    Column("sent", 6),
    Column("received", 6),
    Column("sending", 5),
    Column("receiving", 5),
    Column("reaches"),
    Column("round trip", 1),
    Column("waiting", 4),
    Column("troubles", 2),
)

_STYLES = {"warning": "yellow", "error": "red"}


def view(answer: pb.StatusResponse, before: pb.StatusResponse | None = None) -> Group:
    """All of it. With an earlier answer the stages are those of the time in between."""
    earlier = {job.generation: job for job in before.jobs} if before else {}
    parts: list[Group | Table | Text] = [_daemon(answer)]
    parts += [_job(job, earlier.get(job.generation)) for job in answer.jobs]
    if not answer.jobs:
        parts.append(Text("no jobs"))
    if answer.events:
        parts.append(_events(answer))
    return Group(*parts)


def _daemon(answer: pb.StatusResponse) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("daemon", f"{answer.node_id}, version {answer.version}"),
        ("address", answer.address),
        ("socket", answer.socket),
        ("metrics", answer.metrics or "off"),
        ("up", duration(answer.uptime.seconds)),
    ):
        table.add_row(name, Text(printable(value)))
    return table


def _job(job: pb.JobStatus, before: pb.JobStatus | None) -> Group:
    failed = f"failed: {printable(job.failure)}"
    state = Text(failed, style="red") if job.failure else Text("running")
    rounds = f"{job.rounds_done} done, {job.rounds_open} open, {job.rounds_failed} failed"
    again = f"; taken up again {job.attempt} x" if job.attempt else ""
    heading = Text.assemble(
        (f"\njob {printable(job.generation)}", "bold"),
        f"\nnode {job.node} of {len(job.nodes)}, world size {job.world_size}",
        f"; rounds: {rounds}{again}; ",
        state,
    )
    parts: list[Text | Table | Fitting] = [heading, *map(_stalled, job.stalled)]
    if line := _stages(job, before):
        parts.append(line)
    parts.append(_ranks(job))
    if job.links:
        parts.append(_links(job))
    return Group(*parts)


def _stalled(round_: pb.StalledRound) -> Text:
    ranks = ", ".join(f"rank {rank}" for rank in round_.ranks)
    whom = printable(round_.whom) or ranks or "other nodes"
    waited = format_time(round_.seconds)
    return Text(f"round {round_.sequence} has waited {waited} for {whom}", style="yellow")


def _stages(job: pb.JobStatus, before: pb.JobStatus | None) -> Text | None:
    """The stages with their parts, the largest first."""
    spent = {each.stage: each.seconds for each in job.stages}
    if before and before.ledger_seconds < job.ledger_seconds:
        for each in before.stages:
            spent[each.stage] = spent.get(each.stage, 0.0) - each.seconds
    whole = sum(spent.values())
    if whole <= 0:
        return None
    parts = sorted(((spent.get(stage, 0.0) / whole, stage) for stage in STAGES), reverse=True)
    said = [f"{stage.replace('_', ' ')} {part:.0%}" for part, stage in parts if part >= 0.005]
    return Text(f"where the time goes: {', '.join(said)}")


def _ranks(job: pb.JobStatus) -> Fitting:
    rows: list[list[Text | str]] = []
    local = {rank.rank: rank for rank in job.ranks}
    for node, one in enumerate(job.nodes):
        for number in one.ranks:
            rank = local.get(number)
            if rank is None:
                where = "missing" if node == job.node else "elsewhere"
                blank = [""] * (len(RANKS) - 5)
                rows.append([str(number), str(node), printable(one.host), "", where, *blank])
                continue
            rows.append([str(number), str(node), *_rank(rank)])
    return Fitting(RANKS, rows)


def _rank(rank: pb.RankStatus) -> Iterator[Text]:
    yield Text(printable(rank.host))
    yield Text(str(rank.pid))
    straggles = rank.straggling >= STRAGGLES
    if rank.left:
        yield Text("left")
    elif not rank.joined:
        yield Text("missing", style="red")
    else:
        yield Text("holds others up", style="yellow") if straggles else Text("joined")
    yield Text(rank.path)
    yield Text(str(rank.sequences))
    yield Text(f"{rank.straggling:.0%}", style="yellow" if straggles else "")
    yield Text(str(rank.last_arrivals or ""))
    yield Text(format_time(rank.step_seconds))
    yield Text(f"{rank.communication:.0%}" if rank.step_seconds else "")


def _links(job: pb.JobStatus) -> Fitting:
    rows: list[list[Text | str]] = []
    slow = slow_links(job.links)
    for link in job.links:
        said, style = _link_state(link, slow)
        row: list[Text | str] = [
            str(link.node),
            Text(printable(link.address)),
            Text(said, style=style),
            str(link.connections),
            format_size(link.bytes_sent),
            format_size(link.bytes_received),
            format_rate(link.sent_rate),
            format_rate(link.received_rate),
            format_rate(link.bandwidth),
            format_time(link.round_trip_seconds),
            format_size(link.queued_bytes) if link.queued_bytes else "",
            _troubles(link),
        ]
        rows.append(row)
    return Fitting(LINKS, rows)


def _link_state(link: pb.LinkStatus, slow: Mapping[int, str]) -> tuple[str, str]:
    """In words, and their style."""
    said = state(link)
    if said != "connected":
        return said, "red"
    than = slow.get(link.node)
    return (f"slower than {than}", "yellow") if than else (said, "")


def _troubles(link: pb.LinkStatus) -> str:
    counts = (
        (link.reopened, "opened again"),
        (link.resent, "sent again"),
        (link.damaged, "damaged"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _events(answer: pb.StatusResponse) -> Group:
    lines = [Text("\nlately", style="bold")]
    for event in reversed(answer.events):
        at = time.strftime("%H:%M:%S", time.localtime(event.time.seconds))
        line = f"{at}  {event.level:<7}  {printable(event.text)}"
        lines.append(Text(line, style=_STYLES.get(event.level, "")))
    return Group(*lines)


def state(link: pb.LinkStatus) -> str:
    """Of a link, in words."""
    said, silent = "connected" if link.connected else "down", link.silent.seconds
    return f"{said}, silent for {silent} s" if silent >= SILENT_SECONDS else said


def duration(seconds: int) -> str:
    """`2 d 03:04:05`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02}:{minutes:02}:{seconds:02}"
    return f"{days} d {clock}" if days else clock
