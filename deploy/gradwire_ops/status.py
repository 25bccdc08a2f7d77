"""`gradwire status`: what a daemon is doing."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from gradwire_ops import query, status_watch
from gradwire_ops.status_view import view
from gradwire_proto.addresses import SYSTEM_SOCKET, split_address, user_socket
from gradwire_proto.status_json import to_dict

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb


def run(daemon: str | None, *, as_json: bool, watching: bool = False) -> int:
    """Print it. 1 where no daemon answers. Raises what `places` does."""
    errors: list[str] = []
    for address in places(daemon):
        try:
            answer = query.status(address)
        except query.UnreachableError as error:
            errors.append(str(error))
            continue
        if watching:
            return status_watch.watch(address, answer, as_json=as_json)
        _show(answer, as_json=as_json)
        return 0
    _explain(errors)
    return 1


def _show(answer: pb.StatusResponse, *, as_json: bool) -> None:
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=to_dict(answer))
    else:
        console.print(view(answer))


def _explain(errors: list[str]) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for error in errors:
        console.print(error, markup=False)
    console.print(
        "Start a daemon with `gradwire serve`, or name the one that runs: "
        "--daemon unix:/PATH or HOST:PORT, or the same in GRADWIRE_DAEMON."
    )


def places(daemon: str | None) -> list[str]:
    """Where a daemon is looked for: there, or where the environment says, or at the usual
    sockets. Raises typer.BadParameter for what is no address.
    """
    daemon = daemon or os.environ.get("GRADWIRE_DAEMON")
    if daemon:
        try:
            if not daemon.startswith("unix:"):
                split_address(daemon)
        except ValueError as error:
            raise typer.BadParameter(f"{error}; or unix:/PATH") from None
        return [daemon]
    own = user_socket(os.environ, tempfile.gettempdir(), os.getuid())
    return [f"unix:{SYSTEM_SOCKET}", f"unix:{own}"]
