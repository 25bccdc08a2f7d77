"""A rank's place at one worker of its node's daemon, whichever process that is by now."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from gradwire import _embedded
from gradwire._chain import Chain
from gradwire._channel import Daemon, Doorbell
from gradwire._checkpoint import Residual, collect, parts
from gradwire._errors import ConnectError, LostError
from gradwire._shared_memory import Arena, Keeper, from_now
from gradwire._stream import Streaming
from gradwire_proto.control import ABSENT, SHARES, STREAMS
from gradwire_proto.letters import page_bytes
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradwire._carrier import Carrier
    from gradwire._channel import Post

log = logging.getLogger(__name__)

JOIN_GRACE_SECONDS = 5.0
SEAT_LOOK_SECONDS = 0.1
PROBE_SECONDS = 0.5
PAUSE_SECONDS, JOIN_PAUSE_SECONDS = 0.05, 0.3
"""Between two tries to reach a daemon, and to join at one that was there."""


class Seat:
    """From the first Join to Leave. Methods may be called from any thread."""

    def __init__(self, address: str, request: pb.JoinRequest) -> None:
        self.address = address
        self._request = request
        self._patience = request.connect_timeout.ToMilliseconds() / 1000
        self._resume = request.resume.ToMilliseconds() / 1000
        self._lock = threading.Lock()
        self._daemon: Daemon | None = None
        self._seat = pb.JoinResponse()
        self._given_up = False
        self._keeper: Keeper | None = None
        self._lost = False
        """There is no daemon now, as far as is known."""

    @property
    def attempt(self) -> int:
        """See _recovery.Return."""
        return self._request.attempt

    @property
    def resumes(self) -> bool:
        """A lost daemon is waited for."""
        return self._resume > 0

    @property
    def page_bytes(self) -> int:
        """Of letters."""
        return page_bytes(self._seat.chunk_bytes)

    def take(self) -> Carrier:
        """Join for the first time: how tensors travel. Raises ConnectError."""
        with contextlib.ExitStack() as unless_seated:
            daemon = Daemon(self.address)
            unless_seated.callback(daemon.close)
            seat = daemon.join(self._request, self._patience + JOIN_GRACE_SECONDS)
            carrier = self._open(daemon, seat, self._patience)
            unless_seated.pop_all()
        _embedded.sit_down(self.address)
        return carrier

    def rejoin(
        self, attempt: int, progress: pb.Progress, lost: LostError
    ) -> tuple[Carrier, list[pb.Progress]]:
        """See _recovery.Return."""
        began = time.monotonic()
        deadline = began + self._resume
        log.warning(
            "rank %d: %s; going on as soon as it is back, within %g s",
            self._request.rank,
            lost,
            self._resume,
        )
        self._request.progress.CopyFrom(progress)
        self._lost = True
        attempt, trouble = max(attempt, self.attempt + 1), ""
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or self._given_up:
                raise LostError(f"{lost}, and was not back within {self._resume:g} s{trouble}")
            try:
                found = self._try(attempt, left)
            except ConnectError as error:
                if error.final:
                    raise LostError(f"{lost}; {error}") from error
                trouble = f" ({error})"
                attempt += error.joining
                # Every attempt interrupts all nodes.
                time.sleep(JOIN_PAUSE_SECONDS if error.joining else PAUSE_SECONDS)
                continue
            if isinstance(found, int):
                attempt = found
                continue
            self._lost = False
            waited = time.monotonic() - began
            log.warning("rank %d goes on after %.1f s", self._request.rank, waited)
            return found, list(self._seat.progress)

    def _try(self, attempt: int, left: float) -> Carrier | int:
        """Join once: how tensors travel, or which attempt to come with instead."""
        self.close()
        daemon = Daemon(self.address)
        with contextlib.ExitStack() as unless_seated:
            unless_seated.callback(daemon.close)
            daemon.describe(min(PROBE_SECONDS, left), wait=True)
            with self._lock:
                if self._given_up:
                    raise ConnectError("the session was closed")
                self._daemon = daemon
            self._request.attempt = attempt
            self._request.connect_timeout.FromMilliseconds(max(1, int(1000 * left)))
            seat = daemon.join(self._request, left + JOIN_GRACE_SECONDS)
            if seat.attempt:
                return seat.attempt
            if seat.chunk_bytes != self._seat.chunk_bytes:
                # All that is known of chunks would be of others.
                daemon.leave(seat.seat)
                raise LostError(
                    f"the daemon at {self.address} came back with chunks of"
                    f" {seat.chunk_bytes} bytes, this job has {self._seat.chunk_bytes}:"
                    " restart it with the same --chunk-bytes"
                )
            carrier = self._open(daemon, seat, left)
            unless_seated.pop_all()
        return carrier

    def _open(self, daemon: Daemon, seat: pb.JoinResponse, patience: float) -> Carrier:
        with self._lock:
            self._daemon, self._seat = daemon, seat
        carrier = open_carrier(daemon, seat, self._request, patience, lambda: self._given_up)
        if seat.arena.keeper:
            with contextlib.suppress(OSError):
                keeper = Keeper(seat.arena.keeper)
                self._let_go(orphaned=False)
                self._keeper = keeper
        return carrier

    def _let_go(self, *, orphaned: bool) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close(orphaned=orphaned)

    # -- what else a seat is good for

    def leave(self) -> None:
        """Give the seat back, and all attempts to take it again."""
        with self._lock:
            self._given_up = True
            daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.leave(self._seat.seat)
            daemon.close()
        self._let_go(orphaned=daemon is None)

    def end(self) -> None:
        """The job is over."""
        self._given_up = True
        self.close()
        self._let_go(orphaned=self._lost)

    def close(self) -> None:
        """Drop the connection."""
        with self._lock:
            daemon, self._daemon = self._daemon, None
        if daemon is not None:
            daemon.close()

    def post(self) -> Post:
        """The line for letters. Raises LostError where there is no daemon now."""
        return self._present().post(self._seat.seat)

    def read(self, revoked: Iterable[int]) -> list[Residual]:
        """See _ways.Vault."""
        return list(collect(self._present().read_residuals(self._seat.seat, revoked)))

    def write(self, residuals: list[Residual]) -> int:
        """See _ways.Vault."""
        return self._present().write_residuals(self._seat.seat, parts(residuals)).dropped

    def _present(self) -> Daemon:
        daemon = self._daemon
        if daemon is None or self._lost:
            # While it joins again, the seat that is known is one of the attempt before.
            raise LostError(f"there is no daemon at {self.address} now")
        return daemon


def open_carrier(
    daemon: Daemon,
    seat: pb.JoinResponse,
    request: pb.JoinRequest,
    patience_seconds: float,
    given_up: Callable[[], bool],
) -> Carrier:
    """The arena where all ranks of the node share it, else the stream."""
    doorbell = None
    if seat.HasField("arena"):
        with contextlib.ExitStack() as unless_used:
            try:
                arena = Arena(seat.arena)
                unless_used.callback(arena.close, orphaned=False)
                doorbell = Doorbell(seat.arena.doorbell, seat.seat, daemon.address)
            except (OSError, ValueError) as error:
                log.warning(
                    "no shared memory with the daemon at %s (%s): tensors go through the"
                    " stream, which is slower. Mount its GRADWIRE_SHM_DIR here too, or set"
                    " GRADWIRE_SHM=off to silence this",
                    daemon.address,
                    error,
                )
            else:
                chain = _chain(arena, doorbell, request, patience_seconds, given_up)
                if chain is not None:
                    unless_used.pop_all()
                    return chain
    return Streaming(
        daemon.stream(seat.seat),
        request.rank,
        seat.chunk_bytes,
        seat.slots,
        doorbell,
        resumes=bool(request.resume.ToMilliseconds()),
    )


def _chain(
    arena: Arena,
    doorbell: Doorbell,
    request: pb.JoinRequest,
    patience_seconds: float,
    given_up: Callable[[], bool],
) -> Chain | None:
    """The carrier through the arena, or None where a rank of the node does not share it."""
    ranks, alone = request.nodes[request.node].ranks, len(request.nodes) == 1
    try:
        if not _all_share(arena, ranks, patience_seconds, given_up):
            return None
    except BaseException:
        doorbell.close()
        raise
    return Chain(arena, doorbell, request.world_size, alone=alone, ranks=ranks)


def _all_share(
    arena: Arena, ranks: Iterable[int], patience_seconds: float, given_up: Callable[[], bool]
) -> bool:
    """Whether all ranks of this node use the arena, once that is known.

    Raises ConnectError where it does not get known.
    """
    control = arena.control
    control.take_seat(arena.local_rank, SHARES)
    deadline = time.monotonic() + patience_seconds
    while ABSENT in (seats := control.seats()):
        left = deadline - time.monotonic()
        if given_up():
            raise ConnectError("the session was closed")
        if left <= 0:
            absent = [rank for rank, seat in zip(ranks, seats, strict=True) if seat == ABSENT]
            raise ConnectError(
                f"waited {patience_seconds:g} s for the ranks {absent} of this node to connect;"
                " they had their seats, and went no further"
            )
        control.wait(arena.local_rank, from_now(min(left, SEAT_LOOK_SECONDS)))
    return STREAMS not in seats
