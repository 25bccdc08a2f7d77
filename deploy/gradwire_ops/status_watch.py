"""`gradwire status --watch`: the status every second, until Ctrl-C."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import TYPE_CHECKING

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gradwire_ops import query
from gradwire_ops.status_view import view
from gradwire_proto.status_json import to_dict

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb

REFRESH_SECONDS = 1.0
ANSWER_SECONDS = 4.0

WINDOW = 10
"""Where the time goes is told of so many refreshes."""


def watch(address: str, answer: pb.StatusResponse, *, as_json: bool) -> int:
    """Show this answer, and one more every second. Returns 0, after Ctrl-C.

    A daemon that does not answer is asked again: it may be started again.
    """
    try:
        if as_json:
            _print_lines(address, answer)
        else:
            _redraw(address, answer)
    except KeyboardInterrupt:
        return 0
    return 0


def _print_lines(address: str, answer: pb.StatusResponse) -> None:
    """One object a line; what is no answer goes to standard error."""
    while True:
        typer.echo(json.dumps(to_dict(answer)))
        while True:
            time.sleep(REFRESH_SECONDS)
            try:
                answer = query.status(address, ANSWER_SECONDS)
                break
            except query.UnreachableError as error:
                typer.echo(str(error), err=True)


def _redraw(address: str, answer: pb.StatusResponse) -> None:
    """The whole screen on a terminal; elsewhere one after the other."""
    console = Console(highlight=False)
    seen = deque([answer], maxlen=WINDOW)
    silent = ""
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            shown = Group(Text(silent, style="red"), view(seen[-1], seen[0]))
            if console.is_terminal:
                live.update(shown, refresh=True)
            else:
                console.print(shown)
            time.sleep(REFRESH_SECONDS)
            try:
                seen.append(query.status(address, ANSWER_SECONDS))
                silent = ""
            except query.UnreachableError as error:
                silent = f"{error}; what is below is the last that it said"
