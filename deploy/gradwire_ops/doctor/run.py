"""Puts the doctor's parts together."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed as dist
from rich.console import Console

from gradwire_ops.doctor import report
from gradwire_ops.doctor.checks import host_findings, job_findings, link_findings
from gradwire_ops.doctor.facts import Link
from gradwire_ops.doctor.finding import Finding
from gradwire_ops.doctor.forecast import forecast
from gradwire_ops.doctor.host import look, resolve
from gradwire_ops.doctor.links import explain, reach
from gradwire_ops.doctor.meeting import AbsentError, Meeting, Met
from gradwire_proto.addresses import split_advertised
from gradwire_server.whereabouts import address_towards, network_id, own_address

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DEFAULT_PORT = 50700


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for."""

    peers: tuple[str, ...]
    seconds: float
    timeout: float
    model_bytes: int
    as_json: bool
    plot: Path | None


def run(wishes: Wishes) -> int:
    """Exit code: 0 all is well, 1 there is a failure or a warning."""
    console = Console(highlight=False, soft_wrap=True)
    aside = Console(stderr=True, highlight=False, soft_wrap=True)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if wishes.peers or world_size == 1:
        host = look(os.environ, own_address(), [])
        links = [_peer(each) for each in wishes.peers]
        findings = [*host_findings(host, alone=not links), *link_findings(links)]
        return _tell(console, wishes, findings, Met([host], links))
    try:
        return _together(console, aside, wishes, world_size)
    except AbsentError as error:
        aside.print(str(error), markup=False)
        return 1


def _together(console: Console, aside: Console, wishes: Wishes, world_size: int) -> int:
    rank = int(os.environ["RANK"])
    address = address_towards(os.environ.get("MASTER_ADDR", "")) or own_address()
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=wishes.timeout)))
    except (RuntimeError, ValueError) as error:
        return _unmet(console, wishes, str(error))
    meeting = Meeting(store, rank, world_size, network_id(), timeout=wishes.timeout)
    met = meeting.find_out(
        partial(look, os.environ, address),
        wishes.seconds,
        lambda text: aside.print(f"measuring {text}", markup=False),
    )
    if not meeting.reports:
        return meeting.agree(None)
    findings = [
        *(
            each
            for host in met.hosts
            for each in host_findings(host, alone=len(met.hosts) == 1)
        ),
        *job_findings(met.hosts, world_size),
        *link_findings(met.links),
    ]
    return meeting.agree(_tell(console, wishes, findings, met))


def _unmet(console: Console, wishes: Wishes, error: str) -> int:
    """The store can't be reached: what can be said here may be why."""
    master = os.environ.get("MASTER_ADDR", "")
    leads = " ".join(resolve(master)) or "nowhere"
    finding = Finding(
        "MASTER_ADDR",
        socket.gethostname(),
        "failure",
        f"{master}:{os.environ.get('MASTER_PORT', '')} leads to {leads}; {error}",
        "expected the host of rank 0, by an address that this host reaches: loopback leads"
        " here. Its MASTER_PORT must be open to the other nodes",
    )
    host = look(os.environ, own_address(), [])
    return _tell(console, wishes, [finding, *host_findings(host, alone=False)], Met([host], []))


def _tell(console: Console, wishes: Wishes, findings: Sequence[Finding], met: Met) -> int:
    expected = forecast(met.hosts, met.links, wishes.model_bytes)
    if wishes.as_json:
        print(report.as_json(findings, met.links, expected))  # noqa: T201 - for machines
    else:
        report.show(console, findings, expected)
    if wishes.plot is not None:
        report.plot(wishes.plot, [host.name for host in met.hosts], met.links)
    return 1 if any(each.verdict in {"failure", "warning"} for each in findings) else 0


def _peer(peer: str) -> Link:
    """Whether a daemon's port can be reached from here."""
    host, port = split_advertised(peer)
    here, place = socket.gethostname(), (host, DEFAULT_PORT if port is None else port)
    try:
        return reach(here, peer, place)
    except OSError as error:
        return Link(here, peer, explain(error, f"{place[0]}:{place[1]}"))
