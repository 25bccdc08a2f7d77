"""What the container, or the service manager, lets this process have: memory and processors.

A tmpfs counts there too, and who takes more than is allowed is killed: so it is asked before.
See the kernel's cgroup-v1/memory.rst, scheduler/sched-bwc.rst and cgroup-v2.rst.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

NO_LIMIT = 1 << 60
"""Version 1 says a number as large as this where there is none."""


class Cgroup:
    """This process's, of either version; without one, nothing is limited."""

    def __init__(self, root: Path = ROOT, own: Path = OWN) -> None:
        self._root = root
        self._paths = dict(_paths(own))

    @property
    def memory_room(self) -> int | None:
        """Bytes that may be taken still; None where there is no limit."""
        rooms = [
            *self._rooms("", "memory.max", "memory.current", "inactive_file"),
            *self._rooms(
                "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            ),
        ]
        return min(rooms, default=None)

    @property
    def processors(self) -> float | None:
        """How many may be busy at a time; None where there is no limit."""
        found: list[float] = []
        for folder in self._folders(""):
            quota, _, period = _read(folder / "cpu.max").partition(" ")
            if quota.isdigit():
                found.append(int(quota) / int(period))
        for folder in self._folders("cpu"):
            quota = _read(folder / "cpu.cfs_quota_us")
            if quota.isdigit():
                found.append(int(quota) / int(_read(folder / "cpu.cfs_period_us")))
        return min(found, default=None)

    def _rooms(self, kind: str, limit: str, usage: str, cache: str) -> Iterator[int]:
        for folder in self._folders(kind):
            allowed, used = _read(folder / limit), _read(folder / usage)
            if allowed.isdigit() and used.isdigit() and int(allowed) < NO_LIMIT:
                # What files have been read is let go of first.
                lines = (each.split() for each in _read(folder / "memory.stat").splitlines())
                stat = {each[0]: int(each[1]) for each in lines if len(each) == 2}
                yield max(0, int(allowed) - int(used) + stat.get(cache, 0))

    def _folders(self, kind: str) -> Iterator[Path]:
        """From our own group's up; in a container it may be seen as the topmost."""
        own = self._paths.get(kind)
        if own is None:
            return
        top = self._root / kind
        folder = top / own.lstrip("/")
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def _paths(own: Path) -> Iterator[tuple[str, str]]:
    """Of each kind the group's path; version 2's has no kind."""
    for line in _read(own).splitlines():
        _, kinds, path = line.split(":", 2)
        for kind in kinds.split(","):
            yield kind, path


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
