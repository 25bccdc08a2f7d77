"""How the process of a local rank has ended, where the kernel still knows.

We are not its parent, and can't wait for it. But a process that has begun to end, or has ended
and was not yet waited for, has its exit code in /proc. That is there for as long as its parent
does not look: usually some 100 ms.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_SECONDS = 0.005
PATIENCE_SECONDS = 0.1
"""A process closes its files, and ends a little later."""

PROC = Path("/proc")

# Of proc(5)'s fields, those behind the name, which may have blanks in it.
_STATE, _FLAGS, _STARTED, _EXIT_CODE = 0, 6, 19, 49
_ENDING = 0x4
"""PF_EXITING: the exit code is set before a process closes its files."""
_LOCAL = ("unix:", "ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]")


@dataclass(frozen=True, slots=True)
class _State:
    started: int
    ended: bool
    exit_code: int
    """As waitpid has it; 0 also where we may not know."""


class Life:
    """A process of this host, from when it came until it ends."""

    def __init__(self, pid: int) -> None:
        """0 or less: it can't be seen from here."""
        self._pid = pid
        state = _look(pid)
        self._started = None if state is None else state.started
        self._is_ours = state is not None and _owner(pid) == os.geteuid()

    @property
    def known(self) -> bool:
        """It could be seen when it came."""
        return self._started is not None

    def end(self) -> str | None:
        """How it ended; empty where that can't be known any more, None while it goes on."""
        state = _look(self._pid) if self.known else None
        if state is None or state.started != self._started:
            # Its number may be another's by now.
            return ""
        if not state.ended:
            return None
        if state.exit_code == 0 and not self._is_ours:
            return ""
        return _describe(state.exit_code)


def at(connection: socket.socket) -> Life:
    """The process at the other end of a Unix socket."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    # In our own numbers, whatever namespace it lives in; 0 where it is outside of ours.
    return Life(struct.unpack("3i", credentials)[0])


def of(pid: int, host: str, peer: str) -> Life:
    """The process that says that it is this one; `peer`: where gRPC saw it come from."""
    return Life(pid if host == socket.gethostname() and peer.startswith(_LOCAL) else 0)


def mourn(
    life: Life, told: Callable[[str], None], otherwise: str, until: float | None = None
) -> None:
    """Tell how the process ended: at once, or as soon as it has, for which we wait a moment."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_SECONDS if until is None else until
    ending = life.end()
    if ending is None and loop.time() < until:
        loop.call_later(LOOK_SECONDS, mourn, life, told, otherwise, until)
    else:
        told(f"its process {ending}" if ending else otherwise)


def _look(pid: int) -> _State | None:
    """What the kernel says of a process; None where it says nothing."""
    if pid <= 0:
        return None
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 1 :].split()
    ended = fields[_STATE] in "ZX" or bool(int(fields[_FLAGS]) & _ENDING)
    return _State(int(fields[_STARTED]), ended, int(fields[_EXIT_CODE]))


def _owner(pid: int) -> int | None:
    try:
        return (PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def _describe(exit_code: int) -> str:
    number = exit_code & 0x7F
    if not number:
        return f"ended with exit code {exit_code >> 8} without leaving the job"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"was killed by {name}"
