"""A network namespace that is held by nothing but a file descriptor of this process.

It has no name and no process, so it ends with its holder, even where that is killed: the kernel
closes the descriptor, and takes the namespace down with every interface in it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gradwire_ops.lab_plan import LabError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"


class Namespace:
    """Interfaces, addresses and ports of their own; empty, and its loopback down, at first."""

    def __init__(self) -> None:
        """Raises LabError where this process may not make one."""
        self._descriptor = _in_thread(_make)

    @property
    def path(self) -> str:
        """A file that stands for it, for other processes, as long as this one holds it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def prefix(self) -> tuple[str, ...]:
        """Stands before a command to run it here; becomes that command, under the same pid."""
        return ("nsenter", f"--net={self.path}", "--")

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command that runs this one here."""
        return [*self.prefix(), *command]

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns, called here, in a thread of its own.

        Sockets that it makes stay here, whichever thread uses them later.
        """

        def work() -> T:
            if _libc().setns(self._descriptor, _CLONE_NEWNET):
                raise _error("entering a network namespace")
            return function()

        return _in_thread(work)

    def close(self) -> None:
        """Let go of it; it ends with the last process in it. Repeated calls change nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _make() -> int:
    if _libc().unshare(_CLONE_NEWNET):
        raise _error("making a network namespace")
    # One address for each interface, and no neighbours that ask for one another unbidden. There
    # is no such file where the kernel knows no IPv6.
    with suppress(OSError):
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    return os.open(_OWN, os.O_RDONLY)


def _in_thread(work: Callable[[], T]) -> T:
    """A thread's network namespace is its own: whatever becomes of it ends with the thread."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _error(what: str) -> LabError:
    number = ctypes.get_errno()
    remedy = (
        "run this as root, in a container with the capability SYS_ADMIN"
        if number == errno.EPERM
        else "this kernel may lack network namespaces"
    )
    return LabError(f"{what}: {os.strerror(number)}; {remedy}")
