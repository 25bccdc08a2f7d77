"""Who has how many calls open: none of the callers takes what all of them need."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gradwire_server.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Crowd:
    """The open calls of each host; those through the Unix socket are one host's, too."""

    def __init__(self, most: int) -> None:
        """`most`: calls that one host may have open."""
        self._most = most
        self._calls: Counter[str] = Counter()

    @contextlib.contextmanager
    def joined(self, peer: str) -> Iterator[None]:
        """While a call of this peer, as gRPC names it, is open. Raises LimitError."""
        host = host_of(peer)
        if self._calls[host] >= self._most:
            raise LimitError(
                f"{host} has {self._calls[host]} calls open, which is all that one host may;"
                " end some, or raise the daemon's --max-calls (GRADWIRE_MAX_CALLS)"
            )
        self._calls[host] += 1
        try:
            yield
        finally:
            self._calls[host] -= 1
            if not self._calls[host]:
                del self._calls[host]


def host_of(peer: str) -> str:
    """The host of what gRPC calls a peer: ipv4:192.0.2.1:5000, ipv6:%5B::1%5D:5000, unix:."""
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return "this host's Unix socket"
    return unquote(rest).rpartition(":")[0].strip("[]")
