"""How a stream of a link ends."""

from __future__ import annotations

from typing import NamedTuple

NO_GOODBYE = "its process or its connection ended without a goodbye"


class Ending(NamedTuple):
    """How a stream ended."""

    reason: str = ""
    """Nothing: with a goodbye."""
    fault: bool = False
    """Of the other side, or of what carries the bytes: another stream would not help."""
    clean: bool = False


OWN_FAULT = Ending("this daemon made a mistake of its own", fault=True)
"""Where it raised what it should not: another stream would meet the same."""
