"""`gradwire serve`: the daemon, with its settings as flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping


def run(flags: Mapping[str, object]) -> int:
    """Serve until told to stop. What is None is left to the environment and the file."""
    from gradwire_server import daemon, settings
    from gradwire_server.errors import SettingsError

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        loaded = settings.load(given)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        return 2
    return daemon.run(loaded)
