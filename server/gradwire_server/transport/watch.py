"""What people see of a link: how much passed, how fast, and what was damaged on the way."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from gradwire_server.logs import about
from gradwire_server.transport.measure import Bandwidth, Rate

if TYPE_CHECKING:
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
    sent_rate: float = 0.0
    """Bytes per second, lately."""
    received_rate: float = 0.0
    bandwidth: float | None = None
    """Bytes per second that large shares reached on their way from the peer."""
    usual_bandwidth: float | None = None
    """The same, over the last hour or so."""
    round_trip_seconds: float | None = None
    queued_bytes: int = 0
    reopened: int = 0
    """Streams that broke and were opened again."""
    resent: int = 0
    damaged: int = 0


class Watch:
    """Told of every frame of a link."""

    def __init__(self, peer: int, standing: Standing, generation: str = "") -> None:
        self.subject = about(generation, node=peer)
        """Of what lines about the link are."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.frames = 0
        """That came."""
        self.reopened_count = 0
        self.bandwidth = Bandwidth()
        self._resent = 0
        self._damaged = 0
        self._peer = peer
        self._standing = standing
        self._silent_until = 0.0
        now = time.monotonic()
        self._rates = Rate(now), Rate(now)

    @property
    def status(self) -> Status:
        """What is seen here of the link. In any thread."""
        now = time.monotonic()
        sent, received = self._rates
        return Status(
            bytes_sent=self.sent_bytes,
            bytes_received=self.received_bytes,
            sent_rate=sent.read(now),
            received_rate=received.read(now),
            bandwidth=self.bandwidth.per_second,
            usual_bandwidth=self.bandwidth.usual,
            reopened=self.reopened_count,
            resent=self._resent,
            damaged=self._damaged,
        )

    def sent(self, size: int) -> None:
        """A frame is about to be written."""
        self._standing.moved()
        self.sent_bytes += size
        self._rates[0].add(size, time.monotonic())

    def resent(self, size: int) -> None:
        """It is one that was written before."""
        self.sent(size)
        self._resent += 1

    def received(self, size: int) -> None:
        """A frame came."""
        self._standing.moved()
        self.received_bytes += size
        self.frames += 1
        now = time.monotonic()
        self._rates[1].add(size, now)
        self.bandwidth.received(self.received_bytes, now)

    def damaged(self, text: str) -> None:
        """It is not what it was when it left."""
        self._damaged += 1
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + QUIET_SECONDS
            extra = self.subject
            log.warning(
                "from node %d: %s; it is asked for again", self._peer, text, extra=extra
            )
