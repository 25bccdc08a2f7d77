"""Where the processes of a node run. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A way in, and what other nodes reach there; by default this machine's loopback."""

    prefix: tuple[str, ...] = ()
    """Stands before a command to run it there. It must become the command, not its parent."""
    address: str = "127.0.0.1"
    interface: str = "lo"
    """The network interface that has the address."""


HERE = Place()
