"""`gradwire trace`: what all daemons of a job do for a while, in one file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from gradwire_ops import query
from gradwire_ops.status import default_addresses
from gradwire_proto.trace_json import to_json

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

    from gradwire_proto.v1 import aggregator_pb2 as pb

LOOK_SECONDS = 0.1


def run(daemon: str | None, seconds: float, out: Path) -> int:
    """Write it. 1 where no daemon answers, or the file can't be written."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    errors: list[str] = []
    for address in [daemon] if daemon else default_addresses():
        try:
            addresses = [address, *_others(address)]
        except query.UnreachableError as error:
            errors.append(str(error))
            continue
        return _trace(addresses, seconds, out, console)
    for text in errors:
        console.print(text, markup=False)
    return 1


def _trace(addresses: list[str], seconds: float, out: Path, console: Console) -> int:
    answers = _ask_all(addresses, seconds, console)
    traces = [answer for answer in answers if not isinstance(answer, str)]
    document = to_json(traces, [answer for answer in answers if isinstance(answer, str)])
    for text in document["metadata"]["missing"]:
        console.print(f"warning: {text}", markup=False)
    if not traces:
        return 1
    try:
        out.write_text(json.dumps(document))
    except OSError as error:
        console.print(f"can't write {out}: {error.strerror}", markup=False)
        return 1
    daemons = document["metadata"]["daemons"]
    for each in daemons:
        if each["dropped"]:
            lost = f"{each['dropped']} records of {each['host']} were lost: it did too much"
            console.print(f"warning: {lost} to be written down as fast", markup=False)
    spans = sum(each["spans"] for each in daemons)
    typer.echo(f"{spans} spans of {len(daemons)} daemons: {out}; open it at ui.perfetto.dev")
    return 0


def _ask_all(
    addresses: list[str], seconds: float, console: Console
) -> list[list[pb.TraceResponse] | str]:
    calls: list[grpc.Call] = []
    with ThreadPoolExecutor(len(addresses)) as pool:
        asked = [pool.submit(_ask, address, seconds, calls) for address in addresses]
        try:
            console.print(f"recording for {seconds:g} s; Ctrl-C ends it sooner")
            wait(asked)
        except KeyboardInterrupt:
            # What has come by now is written. A call may be about to be made.
            while wait(asked, timeout=LOOK_SECONDS).not_done:
                for call in calls:
                    call.cancel()
        return [each.result() for each in asked]


def _others(address: str) -> list[str]:
    """The other daemons of this one's jobs, and all workers' that it speaks of."""
    status, own = query.status(address), query.describe(address)
    found = [worker.addresses[0] for worker in own.workers if worker.addresses]
    for job in status.jobs:
        found += [node.address for node in job.nodes if node.id != status.node_id]
    return list(dict.fromkeys(found))


def _ask(address: str, seconds: float, calls: list[grpc.Call]) -> list[pb.TraceResponse] | str:
    """What it answers, or why it does not."""
    try:
        return query.trace(address, seconds, calls)
    except query.UnreachableError as error:
        return str(error)
