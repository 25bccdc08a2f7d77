"""The flags of `gradwire certs`; what it does is in certs, and imported when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="Certificates for daemons and ranks on several hosts, from a small CA of your own.",
)

_Authority = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Of the CA: ca.crt and ca.key.")
]
_Days = Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="How long it is valid.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


@app.command()
def init(folder: _Authority, *, force: _Force = False) -> None:
    """Make a CA. Its ca.key signs certificates: keep it off the nodes."""
    from gradwire_ops import certs as command

    raise typer.Exit(command.init(folder, force=force))


@app.command()
def issue(  # noqa: PLR0913 - one parameter for each flag
    folder: _Authority,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the node, for people.")],
    *,
    host: Annotated[
        list[str],
        typer.Option(
            metavar="HOST", help="Name or address at which the others find it; repeat it."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Gets ca.crt, tls.crt and tls.key.")],
    days: _Days = 90,
    force: _Force = False,
) -> None:
    """Issue a certificate for a node: its daemon and its ranks."""
    from gradwire_ops import certs as command

    order = command.Order(name, tuple(host), days)
    raise typer.Exit(command.issue(folder, order, out, force=force))


@app.command()
def renew(
    folder: _Authority,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="With the node's certificate.")
    ],
    *,
    days: _Days = 90,
    keep_key: Annotated[bool, typer.Option("--keep-key", help="Go on with its key.")] = False,
) -> None:
    """Issue a certificate again, with the names that it has. Daemons take it by themselves."""
    from gradwire_ops import certs as command

    raise typer.Exit(command.renew(folder, directory, days, keep_key=keep_key))


@app.command()
def show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A node's, or the CA's.")],
) -> None:
    """Say whom a certificate names, until when, and what is wrong with it: then exit code 1."""
    from gradwire_ops import certs as command

    raise typer.Exit(command.show(directory))
