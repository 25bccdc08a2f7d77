"""What people see of a link: how much passed, and what was damaged on the way."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from gradwire_server.logs import about

if TYPE_CHECKING:
    from gradwire_server.metrics import Traffic
    from gradwire_server.transport.precedence import Standing

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""Between two words of damage; the metrics count all."""


class Status(NamedTuple):
    """A link as people see it."""

    connected: bool = False
    bytes_sent: int = 0
    bytes_received: int = 0
    connections: int = 0
    silent_seconds: float = 0.0


class Watch:
    """Told of every frame of a link."""

    def __init__(
        self, peer: int, traffic: Traffic, standing: Standing, generation: str
    ) -> None:
        self.subject = about(generation, node=peer)
        """Of what lines about the link are."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.frames = 0
        """That came."""
        self._peer = peer
        self._traffic = traffic
        self._standing = standing
        self._silent_until = 0.0

    def sent(self, size: int) -> None:
        """A frame is about to be written."""
        self._standing.moved()
        self.sent_bytes += size
        self._traffic.sent.inc(size)

    def resent(self, size: int) -> None:
        """It is one that was written before."""
        self.sent(size)
        self._traffic.resent.inc()

    def received(self, size: int) -> None:
        """A frame came."""
        self._standing.moved()
        self.received_bytes += size
        self.frames += 1
        self._traffic.received.inc(size)

    def damaged(self, text: str) -> None:
        """It is not what it was when it left."""
        self._traffic.damaged.inc()
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + QUIET_SECONDS
            extra = self.subject
            log.warning(
                "from node %d: %s; it is asked for again", self._peer, text, extra=extra
            )
