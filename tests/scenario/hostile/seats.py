"""A caller that joins jobs of its own as any rank may, and then breaks the rules."""

from __future__ import annotations

import queue
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import grpc

from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import aggregator_pb2 as pb
from gradwire_proto.v1.aggregator_pb2_grpc import AggregatorStub

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SECONDS = 5.0
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]


class Target:
    """One daemon, as a stranger finds it."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=OPTIONS)
        self.stub = AggregatorStub(self.channel)
        self.described = self.stub.Describe(pb.DescribeRequest(), timeout=SECONDS)
        self.address = self.described.address
        self.socket = address.removeprefix("unix:")
        self.metrics = self.stub.Status(pb.StatusRequest(), timeout=SECONDS).metrics

    def close(self) -> None:
        self.channel.close()

    def unary(self, method: str, data: bytes) -> None:
        """Call a method of the Aggregator, whatever comes of it; give back a seat that does."""
        call: Any = self.channel.unary_unary(f"/gradwire.v1.Aggregator/{method}")
        with suppress(grpc.RpcError):
            answer = call(data, timeout=SECONDS)
            if method == "Join":
                self.leave(pb.JoinResponse.FromString(answer).seat)

    def leave(self, seat: str) -> None:
        """Give a seat back."""
        self.stub.Leave(pb.LeaveRequest(seat=seat), timeout=SECONDS)

    def stream(self, method: str, messages: Iterable[bytes]) -> grpc.StatusCode:
        """Say all of these on a stream, and hear it to its end, which the daemon makes."""
        call: Any = self.channel.stream_stream(f"/gradwire.v1.{method}")
        answers = call(iter(messages), timeout=SECONDS)
        with suppress(grpc.RpcError):
            for _ in answers:
                pass
        code: grpc.StatusCode = answers.code()
        return code

    def request(self, rank: int, *ranks: list[int], memory: bool = False) -> pb.JoinRequest:
        """For a rank of a new job with these ranks on each node; this daemon is the last."""
        request = pb.JoinRequest(
            protocol=PROTOCOL,
            generation=secrets.token_hex(16),
            rank=rank,
            world_size=sum(map(len, ranks)),
            node=len(ranks) - 1,
            host="elsewhere",
            pid=1,
            shared_memory=memory,
        )
        request.connect_timeout.FromMilliseconds(int(1000 * SECONDS))
        for node, each in enumerate(ranks):
            here = node == len(ranks) - 1
            identity = self.described.node_id if here else f"n{node}"
            address = self.address if here else "127.0.0.1:9"
            request.nodes.add(id=identity, address=address, host="elsewhere", ranks=each)
        return request

    @contextmanager
    def seat(self, request: pb.JoinRequest) -> Iterator[pb.JoinResponse]:
        """A seat in a job of one node; given back in the end, unless it is lost."""
        response = self.stub.Join(request, timeout=SECONDS)
        try:
            yield response
        finally:
            self.leave(response.seat)


class Line:
    """A stream on which one may say something at any time."""

    def __init__(self, channel: grpc.Channel, method: str) -> None:
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call: Any = channel.stream_stream(f"/gradwire.v1.{method}")
        self._call = call(iter(self._said.get, None), timeout=SECONDS)

    def say(self, *messages: bytes) -> None:
        for message in messages:
            self._said.put(message)

    def hear(self) -> bytes:
        """The next answer; nothing where the stream has ended."""
        try:
            return bytes(next(self._call))
        except (grpc.RpcError, StopIteration):
            return b""

    def end(self) -> None:
        """Say nothing more, and hear the rest."""
        self._said.put(None)
        while self.hear():
            pass

    def break_off(self) -> None:
        self._said.put(None)
        self._call.cancel()
