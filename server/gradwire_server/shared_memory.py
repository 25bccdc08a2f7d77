"""Creates, hands out and unlinks arenas; their layout is gradwire_proto.arena.

An arena is a named file on a tmpfs, so that a container can share it. Whoever uses it holds a
shared lock on it: one whose lock is free belongs to nobody, and a daemon that starts removes
it.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING

from gradwire_proto.arena import NONCE_BYTES, Layout, pack_header
from gradwire_proto.control import Control
from gradwire_server.errors import StartError
from gradwire_server.memory_folder import PREFIX

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire_server.local import Place
    from gradwire_server.memory_folder import MemoryFolder

FEWEST_SLOTS = 2
ORPHAN_AGE_SECONDS = 10.0
"""Younger files may be between their creation and their lock, or a socket's first listening."""


_ENLARGE = "enlarge it (docker: --shm-size), choose another folder with GRADWIRE_SHM_DIR"


class Arena:
    """The memory of one generation on one node: a file that its ranks map."""

    def __init__(self, layout: Layout, ranks: tuple[int, ...], folder: MemoryFolder) -> None:
        self.layout = layout
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.path = folder.path / f"{PREFIX}{secrets.token_hex(8)}"
        self._ranks = {rank: index for index, rank in enumerate(ranks)}
        self._file = -1
        memory = self._create(folder)
        self._view = memoryview(memory)
        self.control = Control(memory, layout)
        self.control.initialise()

    def _create(self, folder: MemoryFolder) -> mmap.mmap:
        self._file = folder.reserve(self.path, self.layout.size)
        try:
            os.pwrite(self._file, pack_header(self.layout, self.nonce), 0)
            return mmap.mmap(
                self._file, self.layout.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
            )
        except OSError:
            self._unlink()
            raise

    def local_rank(self, rank: int) -> int:
        """Index of a rank at this node."""
        return self._ranks[rank]

    def place(self, ticket: int) -> Place:
        """The memory of a ticket's chunk."""
        start = self.layout.slot(ticket % self.layout.slots)
        return _Slot(
            self._view[start : start + self.layout.slot_bytes], self.layout.chunk_bytes
        )

    def close(self) -> None:
        """Unlink the file, and let go of the memory; it goes when the last view of it does."""
        self._view = memoryview(b"")
        self.control.close()
        self._unlink()

    def _unlink(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.path.unlink(missing_ok=True)


class _Slot:
    """See local.Place."""

    def __init__(self, memory: memoryview, chunk_bytes: int) -> None:
        self._memory = memory
        self._chunk_bytes = chunk_bytes

    def total(self, size: int) -> memoryview:
        """See local.Place."""
        return self._memory[:size]

    def result(self, size: int) -> memoryview:
        """See local.Place."""
        return self._memory[self._chunk_bytes :][:size]


def create(ranks: tuple[int, ...], slots: int, chunk_bytes: int, folder: MemoryFolder) -> Arena:
    """A shared arena, with fewer slots where memory is short.

    Raises StartError with figures where not even the fewest fit.
    """
    asked = slots
    while True:
        layout = Layout(len(ranks), slots, chunk_bytes)
        try:
            return Arena(layout, ranks, folder)
        except OSError as error:
            if slots > FEWEST_SLOTS:
                slots = max(FEWEST_SLOTS, slots // 2)
                continue
            remedy = folder.limit(layout.size) or _ENLARGE
            raise StartError(
                f"no shared memory for {len(ranks)} ranks: {layout.size >> 20} MiB in"
                f" {folder.path}"
                f" ({slots} slots of {layout.slot_bytes} bytes; {asked} were asked for),"
                f" {folder.room >> 20} MiB are free ({error.strerror}):"
                f" {remedy}, or set GRADWIRE_SHM=off for the ranks"
            ) from error


def remove_orphans(folder: Path) -> int:
    """Unlink the arenas and doorbells that nobody uses any more; how many there were."""
    removed = 0
    for path in folder.glob(f"{PREFIX}*"):
        if _is_young(path):
            continue
        orphaned = _is_silent(path) if path.is_socket() else path.is_file() and _is_orphan(path)
        if orphaned:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _is_young(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime < ORPHAN_AGE_SECONDS
    except OSError:
        # Gone already, or not to be looked at.
        return True


def _is_silent(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def name_of(generation: str, node: int) -> str:
    """How the names of a generation's files begin, at one node: two may share a host."""
    digest = hashlib.blake2b(f"{generation}/{node}".encode(), digest_size=8)
    return PREFIX + digest.hexdigest()


def keeper(folder: Path, name: str) -> Path:
    """The file on which the ranks of a generation, so named, hold a lock."""
    return folder / f"{name}-keep"


class Keeper:
    """A generation's keeper, made and held by its daemon as well."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises OSError where it can't be made."""
        self.path = keeper(folder, name)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o660)
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self, *, unlink: bool) -> None:
        """Let go of it; with `unlink`, for all."""
        os.close(self._file)
        if unlink:
            self.path.unlink(missing_ok=True)


def _is_orphan(path: Path) -> bool:
    stem = path.name.removeprefix(PREFIX).split("-")
    if len(stem) > 1:
        kept = keeper(path.parent, PREFIX + stem[0])
        return _is_unlocked(path) and (kept == path or not _is_held(kept))
    return _is_unlocked(path)


def _is_held(path: Path) -> bool:
    return path.exists() and not _is_unlocked(path)


def _is_unlocked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True
