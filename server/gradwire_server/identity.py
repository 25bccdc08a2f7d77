"""What a daemon says of itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gradwire_server.events import Events

if TYPE_CHECKING:
    from gradwire_server.workers import Report


class Identity:
    """What the daemon says of itself; addresses are known once it listens."""

    def __init__(self, version: str, node_id: str) -> None:
        self.version = version
        self.node_id = node_id
        self.address = ""
        self.addresses: list[str] = []
        self.bandwidth = 0
        self.socket = ""
        self.metrics = ""
        self.doorbell = ""
        self.insecure = False
        self.certified = False
        self.chunk_bytes = 0
        self.workers: list[Report] = []
        self.events = Events()
        self.started = time.monotonic()
