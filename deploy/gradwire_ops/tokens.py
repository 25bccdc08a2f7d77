"""`gradwire tokens`: the daemons' key, and tokens for jobs."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from gradwire_proto.tokens import LEAST_KEY_BYTES, Claim, make

app = typer.Typer(no_args_is_help=True, help="Tokens that say which job a rank is of.")

DAY_SECONDS = 86_400

_Key = Annotated[Path, typer.Argument(metavar="KEY", help="File with the daemons' key.")]


@app.command()
def init(key: _Key) -> None:
    """Make a key: all daemons of a job have the same, and nobody else has it."""
    try:
        file = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise typer.BadParameter(f"can't make {key}: {error.strerror}") from error
    with os.fdopen(file, "w") as lines:
        lines.write(secrets.token_hex(LEAST_KEY_BYTES) + "\n")
    typer.echo(f"{key}: start the daemons with --token-key {key}", err=True)


@app.command()
def issue(
    key: _Key,
    *,
    job: Annotated[str, typer.Option(metavar="NAME", help="Letters, digits, - and _.")],
    ranks: Annotated[str, typer.Option(metavar="0-3,8", help="*: all of the job.")] = "*",
    days: Annotated[int, typer.Option(metavar="N", min=0, help="0: for ever.")] = 30,
) -> None:
    """Print a token: put it into the file that GRADWIRE_TOKEN_FILE names."""
    expires = int(time.time()) + days * DAY_SECONDS if days else None
    try:
        token = make(key.read_bytes().strip(), Claim(job, ranks), expires)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(token)
