"""Who may sit: whoever bears a token for a job and its ranks, where tokens are asked for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gradwire_proto import tokens
from gradwire_server.errors import StrangerError, UnprovenError
from gradwire_server.logs import about

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradwire_proto.v1 import aggregator_pb2 as pb

log = logging.getLogger(__name__)


class Admission:
    """At the door of a daemon. What comes of each caller is logged."""

    def __init__(self, key: bytes | None = None) -> None:
        """`key`: of the tokens; None: nobody is asked for one."""
        self._key = key

    def admit(
        self, request: pb.JoinRequest, metadata: Iterable[tuple[str, str | bytes]]
    ) -> None:
        """Write the job's name into the request, as the caller's token has it.

        Raises UnprovenError without a token that is good, StrangerError where it is for other
        ranks.
        """
        request.job = ""
        if self._key is None:
            return
        try:
            claim = tokens.read(self._key, _bearer(metadata))
        except ValueError as error:
            raise UnprovenError(
                f"{error}; this daemon seats only ranks with a token of its job: set"
                f" {tokens.FILE_VARIABLE} to a file with what `gradwire tokens issue` printed"
            ) from None
        if not claim.covers(request.rank):
            raise StrangerError(
                f"the token is for ranks {claim.ranks} of job {claim.job}, not for rank"
                f" {request.rank}"
            )
        request.job = claim.job

    def seated(self, request: pb.JoinRequest, peer: str) -> None:
        """A rank has its seat."""
        log.info(
            "rank %d of %d joined generation %s%s from %s, process %d on %r",
            request.rank,
            request.world_size,
            request.generation[:8],
            f" of job {request.job}" if request.job else "",
            peer or "this host",
            request.pid,
            request.host,
            extra=about(request.generation, ranks=(request.rank,)),
        )


def check_job(expected: str, request: pb.JoinRequest) -> None:
    """Raise StrangerError where a generation is another job's."""
    if request.job != expected:
        raise StrangerError(
            f"generation {request.generation[:8]} is of job {expected}, the token is for job"
            f" {request.job}"
        )


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """What RFC 6750 calls a bearer token; empty where there is none."""
    for name, value in metadata:
        if name == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""
