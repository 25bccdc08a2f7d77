"""The folder, on a tmpfs, for arenas and residuals, and how much of it is to be had."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from gradwire_server.cgroup import Cgroup

PREFIX = "gradwire-"
"""Of the names of all our files there."""


class MemoryFolder:
    """Where one daemon makes shared memory."""

    def __init__(self, path: Path = Path("/dev/shm"), most: int = 0) -> None:  # noqa: S108
        """`most`: bytes that all files made here may have together; 0: no limit of ours."""
        self.path = path
        self.most = most
        self._made: set[Path] = set()
        """Kept where we have a limit of our own: else nobody would look which of them go."""

    @property
    def room(self) -> int:
        """Bytes that are to be had; 0 where there is no such folder.

        What lies there counts against the container's memory, too, and whoever writes more than
        that allows is killed.
        """
        try:
            usage = os.statvfs(self.path)
        except OSError:
            return 0
        rooms = [usage.f_bavail * usage.f_frsize]
        if (left := Cgroup().memory_room) is not None:
            rooms.append(left)
        if self.most:
            rooms.append(max(0, self.most - self._used()))
        return min(rooms)

    def reserve(self, path: Path, size: int) -> int:
        """A new file of this size in it, locked for as long as the returned descriptor, or one
        that was made of it, is open. Raises OSError, and leaves no file, where there is no room
        for it.
        """
        if size > self.room:
            # tmpfs would first take what there is, and then say that it was not enough.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o660)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            # Whatever the umask: ranks may run as another user of the daemon's group.
            os.fchmod(file, 0o660)
            # Reserved now: a write to a page that can't be had later would be a bus error.
            os.posix_fallocate(file, 0, size)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        if self.most:
            self._made.add(path)
        return file

    def limit(self, size: int) -> str | None:
        """What keeps so many bytes from being had, wherever they lie, and what to do about it;
        None where it is only this folder, or nothing.
        """
        if self.most and size > self.most - self._used():
            return (
                f"all jobs together may have {self.most >> 20} MiB: wait for one to end, or"
                " raise the daemon's --max-memory (GRADWIRE_MAX_MEMORY)"
            )
        left = Cgroup().memory_room
        if left is not None and size > left:
            return (
                f"the container may take {left >> 20} MiB more, and shared memory counts: raise"
                " its memory limit, or lower GRADWIRE_SLOTS"
            )
        return None

    def _used(self) -> int:
        used = 0
        for path in list(self._made):
            try:
                used += path.stat().st_size
            except OSError:
                # Unlinked since; who maps it still is about to let go.
                self._made.discard(path)
        return used
