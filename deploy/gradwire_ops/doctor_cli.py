"""The flags of `gradwire doctor`; what it does is in doctor/, imported when it is needed."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated

import typer


def doctor(  # noqa: PLR0913 - one parameter for each flag
    *,
    peers: Annotated[
        str | None,
        typer.Option(metavar="HOST[:PORT],...", help="Daemons of other nodes to look for."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=60, help="For each way.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long to wait for a process.")
    ] = 60.0,
    model: Annotated[
        str, typer.Option(metavar="SIZE", help="Of a step's gradients, like 100MiB.")
    ] = "100MiB",
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A heat map of the links, as PNG.")
    ] = None,
) -> None:
    """See what is in the way of a job: on this host, or on all nodes under torchrun.

    `torchrun ... -m gradwire_ops doctor`, started as the job would be, looks at every node and
    measures every way between them. Exit code 1: something is to be done.
    """
    from gradwire_ops.doctor.run import Wishes, run
    from gradwire_ops.sizes import parse_size

    try:
        size = parse_size(model)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    several = tuple(each.strip() for each in peers.split(",")) if peers else ()
    raise typer.Exit(run(Wishes(several, seconds, timeout, size, json, plot)))
