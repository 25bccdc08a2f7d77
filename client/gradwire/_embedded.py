"""Starts a daemon for a node that has none; it ends when the job's last local rank has left.

If it ends otherwise, the process that started it starts another one in its place: all other
ranks of the node find that where the first one was.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire._channel import Daemon
from gradwire._errors import ConnectError
from gradwire_proto.addresses import is_loopback, join_address
from gradwire_proto.certificates import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
AGAIN_SECONDS = 0.1
"""Before a daemon is started again: one that can't start would keep a core busy."""

_addresses: dict[tuple[int, str], str] = {}
"""Of the embedded daemons that this process knows, by process and node key."""

_seats: Counter[str] = Counter()
"""This process's seats at each daemon, by address."""

_counting = threading.Lock()


def in_use(key: str) -> str | None:
    """Address of the embedded daemon at which this process has a seat: it goes on meanwhile."""
    address = _addresses.get((os.getpid(), key))
    return address if address is not None and _seats[address] > 0 else None


def remember(key: str, address: str) -> str:
    """This process uses this embedded daemon from now on."""
    _addresses[os.getpid(), key] = address
    return address


def sit_down(address: str) -> None:
    """This process has a seat more."""
    with _counting:
        _seats[address] += 1


def get_up(address: str) -> None:
    """This process has a seat less, or is about to, however that comes."""
    with _counting:
        _seats[address] -= 1


def node_key(node: str | None) -> str:
    """Names this node: processes with the same key can share one embedded daemon."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/mnt').st_ino}/{os.getuid()}/{node or ''}"


def start(
    *, insecure: bool, resumes: bool, timeout_seconds: float
) -> tuple[str, Callable[[], None]]:
    """Start a daemon: its address, once it answers, and what ends it. Raises ConnectError.

    Where the job resumes, it is started again if it does not end by itself.
    """
    folder = tempfile.mkdtemp(prefix="gradwire-")
    path = Path(folder) / "gradwire.sock"
    environment = {
        "GRADWIRE_METRICS_LISTEN": "",
        "GRADWIRE_LOG_LEVEL": "warning",
        **_listening(insecure=insecure),
        **os.environ,
        "GRADWIRE_SOCKET": str(path),
        "GRADWIRE_EMBEDDED": "1",
    }
    process = _spawn(environment)
    address = f"unix:{path}"
    after = threading.Thread(
        target=_look_after,
        args=(process, environment, folder, address if resumes else ""),
        name="gradwire-embedded",
        daemon=True,
    )
    after.start()
    log.info("no gradwire daemon on this node: started an embedded one, pid %d", process.pid)
    _await(process, path, timeout_seconds)
    return address, process.terminate


def _spawn(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # Not in our process group: Ctrl-C is for the ranks, and the daemon ends after them.
    return subprocess.Popen(
        [sys.executable, "-m", "gradwire_server"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _look_after(
    process: subprocess.Popen[bytes], environment: dict[str, str], folder: str, address: str
) -> None:
    """Reap the daemon, and start another one while this process has a seat at this address.

    In the end, remove what it had no time to remove itself.
    """
    try:
        while process.wait() and _seats[address] > 0:
            log.warning(
                "the embedded daemon, pid %d, ended with exit code %d: starting another one",
                process.pid,
                process.returncode,
            )
            time.sleep(AGAIN_SECONDS)
            process = _spawn(environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await(process: subprocess.Popen[bytes], path: Path, timeout_seconds: float) -> None:
    end = time.monotonic() + timeout_seconds
    while not path.exists() and process.returncode is None and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    if process.returncode is not None:
        raise ConnectError(
            f"the embedded daemon ended with exit code {process.returncode}; its own words"
            " stand"
            " on stderr"
        )
    daemon = Daemon(f"unix:{path}")
    try:
        daemon.describe(max(0.1, end - time.monotonic()), wait=True)
    except ConnectError:
        process.terminate()
        raise
    finally:
        daemon.close()


def _listening(*, insecure: bool) -> dict[str, str]:
    if not insecure and not os.environ.get(VARIABLE):
        return {"GRADWIRE_LISTEN": "127.0.0.1:0"}
    # The network on which the job's master is found is the one on which the others are.
    address = _address_towards(os.environ.get("MASTER_ADDR", ""))
    if not address or is_loopback(address):
        # On the master's own host its name may lead to loopback; it has another address.
        address = "0.0.0.0"  # noqa: S104 - the daemon tells the others which one
    listening = {"GRADWIRE_LISTEN": join_address(address, 0)}
    return {**listening, "GRADWIRE_INSECURE": "1"} if insecure else listening


def _address_towards(target: str) -> str:
    """Local address of a datagram socket towards target; nothing is sent."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM) if target else []
    except OSError:
        return ""
    for family, kind, _, _, there in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(there)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""
