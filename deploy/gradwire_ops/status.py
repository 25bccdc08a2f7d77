"""`gradwire status`: what a daemon is doing."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gradwire_ops import query
from gradwire_ops.sizes import format_size
from gradwire_proto.status_json import to_dict

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb

SILENT_SECONDS = 2
"""Of so long a silence of another node people are told."""


def run(daemon: str | None, *, as_json: bool) -> int:
    """Print it. 1 where no daemon answers, 2 where the address is none."""
    addresses = [daemon] if daemon else default_addresses()
    errors: list[str] = []
    for address in addresses:
        if mistake := _mistake(address):
            typer.echo(f"{address}: {mistake}", err=True)
            return 2
        try:
            answer = query.status(address)
        except query.UnreachableError as error:
            errors.append(str(error))
            continue
        _show(answer, as_json=as_json)
        return 0
    _explain(errors)
    return 1


def _mistake(address: str) -> str:
    """What is wrong with an address; nothing, if it is empty."""
    from gradwire_proto.addresses import split_address

    if address.startswith("unix:"):
        return ""
    try:
        split_address(address)
    except ValueError as error:
        return f"{error}, or unix:/PATH"
    return ""


def _show(answer: pb.StatusResponse, *, as_json: bool) -> None:
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=to_dict(answer))
        return
    console.print(_daemon(answer))
    for job in answer.jobs:
        console.print(_job(job))
    if not answer.jobs:
        console.print("no jobs")


def _explain(errors: list[str]) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for error in errors:
        console.print(error, markup=False)
    console.print(
        "Start a daemon with `gradwire serve`, or name the one that runs: "
        "--daemon unix:/PATH or HOST:PORT, or the same in GRADWIRE_DAEMON."
    )


def _daemon(answer: pb.StatusResponse) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("daemon", f"{answer.node_id}, version {answer.version}"),
        ("address", answer.address),
        ("socket", answer.socket),
        ("metrics", answer.metrics or "off"),
        ("up", _duration(answer.uptime.seconds)),
    ):
        table.add_row(name, Text(value))
    return table


def _job(job: pb.JobStatus) -> Group:
    state = Text(f"failed: {job.failure}", style="red") if job.failure else Text("running")
    rounds = f"{job.rounds_done} done, {job.rounds_open} open, {job.rounds_failed} failed"
    heading = Text.assemble(
        (f"\njob {job.generation}", "bold"),
        f"\nnode {job.node} of {len(job.nodes)}, world size {job.world_size}",
        f"; rounds: {rounds}; ",
        state,
    )
    parts: list[Text | Table] = [heading, _ranks(job)]
    if job.links:
        parts.append(_links(job))
    return Group(*parts)


def _ranks(job: pb.JobStatus) -> Table:
    names = ("rank", "node", "host", "process", "state", "path", "rounds begun", "straggling")
    table = Table(*names)
    local = {rank.rank: rank for rank in job.ranks}
    for node, one in enumerate(job.nodes):
        for number in one.ranks:
            rank = local.get(number)
            if rank is None:
                where = "missing" if node == job.node else "elsewhere"
                table.add_row(str(number), str(node), one.host, "", where)
                continue
            state = "joined" if rank.joined else "missing"
            process, path, begun = str(rank.pid), rank.path, str(rank.sequences)
            late = f"{rank.straggling:.0%}"
            table.add_row(str(number), str(node), rank.host, process, state, path, begun, late)
    return table


def _links(job: pb.JobStatus) -> Table:
    table = Table("link to node", "address", "state", "connections", "sent", "received")
    for link in job.links:
        state = _state(link)
        sent, received = format_size(link.bytes_sent), format_size(link.bytes_received)
        count = str(link.connections)
        table.add_row(str(link.node), link.address, state, count, sent, received)
    return table


def _state(link: pb.LinkStatus) -> str:
    state, silent = "connected" if link.connected else "down", link.silent.seconds
    return f"{state}, silent for {silent} s" if silent >= SILENT_SECONDS else state


def _duration(seconds: int) -> str:
    """`2 d 03:04:05`."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02}:{minutes:02}:{seconds:02}"
    return f"{days} d {clock}" if days else clock


def default_addresses() -> list[str]:
    """Where a daemon is looked for when no flag says where it is."""
    from gradwire_proto.addresses import SYSTEM_SOCKET, user_socket

    own = user_socket(os.environ, tempfile.gettempdir(), os.getuid())
    named = os.environ.get("GRADWIRE_DAEMON")
    return [named] if named else [f"unix:{SYSTEM_SOCKET}", f"unix:{own}"]
