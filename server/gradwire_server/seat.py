"""One local rank's line to the daemon, whatever carries it."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Protocol

from gradwire_proto import wire
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_server.errors import ProtocolError
from gradwire_server.round import Contribution, Key, Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradwire_proto.nonfinite import Finding
    from gradwire_server.group import Member


class Carrier(Protocol):
    """Takes responses to one rank: the gRPC stream, or the doorbell."""

    inline: bool
    """Chunks travel on it; else they lie in the arena."""

    def send(self, response: bytes) -> None:
        """Queue a serialised ReduceResponse. Never waits; dropped where the rank is gone."""
        ...


class Seat:
    """A rank's place in a generation, from Join to Leave."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.token = secrets.token_hex(16)
        self._carrier: Carrier | None = None
        self._unsaid: list[pb.ReduceResponse] = []
        self._lease: asyncio.TimerHandle | None = None

    @property
    def path(self) -> str:
        """How the rank's tensors travel; empty before it opened its stream."""
        if self._carrier is None:
            return ""
        return "stream" if self._carrier.inline else "shared_memory"

    def expect(self, seconds: float, lost: Callable[[], None]) -> None:
        """The rank knows that it is seated: call lost unless it opens its stream in time.

        A rank that died in between would be waited for for ever.
        """
        if self._carrier is None:
            self._lease = asyncio.get_running_loop().call_later(seconds, lost)

    def open(self, carrier: Carrier) -> None:
        """The rank has opened its line. Raises ProtocolError where it had before.

        A stream may follow a doorbell, which then is only kept.
        """
        if self._carrier is not None and (self._carrier.inline or not carrier.inline):
            raise ProtocolError(f"{self.member} already has a stream")
        self.close()
        self._carrier = carrier
        for response in self._unsaid:
            carrier.send(response.SerializeToString())
        self._unsaid.clear()

    def close(self) -> None:
        """Nobody need wait for the rank's stream any more."""
        if self._lease is not None:
            self._lease.cancel()

    def result(self, key: Key, result: memoryview, found: Finding | None = None) -> None:
        """Send the rank its result."""
        assert self._carrier is not None, "a rank that contributed has a stream"  # noqa: S101
        response = pb.ReduceResponse(sequence=key.sequence, chunk=key.chunk)
        if found is not None:
            response.nonfinite.CopyFrom(found.write())
        self._carrier.send(wire.join(response, result))

    def failed(self, sequence: int, failure: pb.Failure) -> None:
        """Tell the rank that its collective, or its job, has failed."""
        self._say(pb.ReduceResponse(sequence=sequence, failure=failure))

    def call_back(self, attempt: int) -> None:
        """Have the rank join once more, with this attempt."""
        self._say(pb.ReduceResponse(sequence=0, rejoin=attempt))

    def _say(self, response: pb.ReduceResponse) -> None:
        if self._carrier is None:
            self._unsaid.append(response)
        else:
            self._carrier.send(response.SerializeToString())


def read_request(request: pb.ReduceRequest, payload: memoryview) -> tuple[Key, Contribution]:
    """What a ReduceRequest says."""
    contribution = Contribution(Spec.read(request.spec), request.weight, payload)
    return Key(request.sequence, request.chunk), contribution
