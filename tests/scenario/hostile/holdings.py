"""What a daemon has and its jobs leave behind, or not."""

from __future__ import annotations

import time
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from gradwire_ops import query

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gradwire_ops.cluster import Cluster

POLL_SECONDS = 0.05

_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True)
class Holdings:
    """Of one process."""

    resident_bytes: int
    descriptors: int
    threads: int
    connections: int
    """Sockets that are no listeners."""

    @classmethod
    def of(cls, pid: int) -> Holdings:
        process = psutil.Process(pid)
        sockets = process.net_connections("all")
        open_ones = [each for each in sockets if each.status not in ("LISTEN", "NONE")]
        return cls(
            process.memory_info().rss,
            process.num_fds(),
            process.num_threads(),
            len(open_ones),
        )

    def within(self, other: Holdings) -> bool:
        """No more of what is counted than the other; memory aside."""
        return (
            self.descriptors <= other.descriptors
            and self.threads <= other.threads
            and self.connections <= other.connections
        )


def soon(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it does within so long."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def generations(nodes: Cluster) -> list[str]:
    """Of all jobs at all daemons, node by node."""
    statuses = [query.status(address) for address in nodes.addresses]
    return [job.generation for status in statuses for job in status.jobs]


def seated(nodes: Cluster) -> float:
    """Ranks that have a seat, as the metrics pages say."""
    total = 0.0
    for address in nodes.addresses:
        page = query.status(address).metrics
        with _without_proxy(f"http://{page}/metrics") as read:
            lines = read.read().decode().splitlines()
        total += sum(
            float(x.split()[1]) for x in lines if x.startswith("gradwire_ranks_joined ")
        )
    return total


def arenas(folder: Path) -> list[str]:
    """Names of the files of shared memory, but for those that are only there to be locked."""
    files = (path.name for path in folder.iterdir() if path.is_file())
    return sorted(name for name in files if not name.endswith("-keep"))
