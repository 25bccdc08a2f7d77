"""The short way to local ranks: one Unix seqpacket socket a rank, one message a packet.

A rank says that its node's chunks are summed in the arena, and hears what fails. See
ARCHITECTURE.md, decision 3.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server import obituary
from gradwire_server.errors import GradwireServerError, StartError
from gradwire_server.job import Job
from gradwire_server.memory_folder import PREFIX

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)

LONGEST_PACKET = 64 * 1024
UNSEATED_SECONDS = 10.0
MOST_UNSEATED = 256
PAUSE_SECONDS = 1.0

GONE = "its process ended, or closed its line, without leaving the job"

FindSeat = Callable[[str], tuple[Job, int]]
"""The job and rank of a seat; raises RefusedError where there is none."""


class Doorbell:
    """Listens beside the arenas: whoever can map one can ring here."""

    def __init__(self, folder: Path, find_seat: FindSeat) -> None:
        self.path = folder / f"{PREFIX}{secrets.token_hex(8)}.bell"
        self._find_seat = find_seat
        self._visitors: set[_Visitor] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)

    def open(self) -> None:
        """Accept ranks from now on."""
        try:
            self._socket.bind(str(self.path))
        except OSError as error:
            self._socket.close()
            raise StartError(
                f"can't make a socket in {self.path.parent}: {error.strerror or error}; choose"
                " another --shm-dir, on a tmpfs, writable, with a short path"
            ) from error
        os.chmod(self.path, 0o660)
        self._socket.listen(MOST_UNSEATED)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def close(self) -> None:
        """End all lines and unlink the socket."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.path.unlink(missing_ok=True)
        for visitor in list(self._visitors):
            visitor.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("can't take a local connection: %s", error.strerror)
            self._pause()
            return
        unseated = sum(not visitor.seated for visitor in self._visitors)
        if unseated >= MOST_UNSEATED:
            connection.close()
            return
        connection.setblocking(False)
        visitor = _Visitor(connection, self._find_seat, self._visitors.discard)
        self._visitors.add(visitor)

    def _pause(self) -> None:
        """Look away for a moment: the connection still waits, and would call us at once."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)


class _Visitor:
    """One connection: a seat in its first packet, then rings; the other way, failures."""

    inline = False

    def __init__(
        self,
        connection: socket.socket,
        find_seat: FindSeat,
        gone: Callable[[_Visitor], None],
    ) -> None:
        self._connection = connection
        self._find_seat = find_seat
        self._gone = gone
        self._job: Job | None = None
        self._rank = -1
        self._life = obituary.at(connection)
        loop = asyncio.get_running_loop()
        loop.add_reader(connection, self._read)
        self._patience = loop.call_later(UNSEATED_SECONDS, self.close)

    @property
    def seated(self) -> bool:
        """The first packet has come."""
        return self._job is not None

    def send(self, response: bytes) -> None:
        """See seat.Carrier."""
        if self._connection.fileno() < 0:
            return
        try:
            self._connection.send(response)
        except (BlockingIOError, ConnectionError):
            # More answers than it could ever have asked for, or it is gone: either way it is
            # lost.
            self.close()

    def close(self, reason: str = "") -> None:
        """End the line; the job hears that the rank is gone, and why, as far as is known."""
        if self._connection.fileno() < 0:
            return
        self._patience.cancel()
        asyncio.get_running_loop().remove_reader(self._connection)
        self._connection.close()
        self._gone(self)
        if (job := self._job) is None:
            return
        if reason:
            job.lose(self._rank, reason)
        else:
            job.mourn(self._rank, self._life, GONE)

    def _read(self) -> None:
        try:
            packet = self._connection.recv(LONGEST_PACKET)
        except BlockingIOError:
            return
        except ConnectionError:
            packet = b""
        if not packet:
            self.close()
            return
        try:
            self._hear(pb.Ring.FromString(packet))
        except (DecodeError, GradwireServerError) as error:
            extra = self._job.subject(self._rank) if self._job is not None else None
            text = "a local connection broke the rules and was closed: %s"
            log.warning(text, error, extra=extra)
            self.close(f"it broke the rules: {error}")

    def _hear(self, ring: pb.Ring) -> None:
        if self._job is None:
            job, self._rank = self._find_seat(ring.seat)
            self._patience.cancel()
            job.open(self._rank, self)
            self._job = job
            return
        self._job.engine.ring(self._rank, ring)
