"""A client that has nothing of ours but the .proto files: two ranks of one node, one mean.

    python -m plain_client HOST:PORT

The stubs come from PYTHONPATH, freshly generated; gRPC runs with its default options. Prints
the means that both ranks got as one line of JSON.
"""

from __future__ import annotations

import json
import queue
import socket
import struct
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 20

pb: Any = import_module("gradwire.v1.aggregator_pb2")
tensor: Any = import_module("gradwire.v1.tensor_pb2")
AggregatorStub: Any = import_module("gradwire.v1.aggregator_pb2_grpc").AggregatorStub


class Rank:
    """A seat, and the stream that goes with it."""

    def __init__(self, stub: Any, number: int, node: Any) -> None:  # noqa: ANN401
        self._stub = stub
        request = pb.JoinRequest(
            protocol=stub.Describe(pb.DescribeRequest(), timeout=SECONDS).protocol,
            generation="a life of this job",
            rank=number,
            world_size=2,
            nodes=[node],
            host=socket.gethostname(),
        )
        self.seat = stub.Join(request, timeout=SECONDS)
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outgoing.put(pb.ReduceRequest(seat=self.seat.seat))
        self._incoming = stub.Reduce(self._requests(), timeout=SECONDS)

    def _requests(self) -> Iterator[Any]:
        while (request := self._outgoing.get()) is not None:
            yield request

    def bring(self, values: list[float]) -> None:
        """Send all chunks of a tensor."""
        spec = tensor.Spec(
            op=tensor.OP_MEAN,
            dtype=tensor.DTYPE_FLOAT32,
            elements=len(values),
            wire=tensor.WIRE_EXACT,
        )
        data = struct.pack(f"<{len(values)}f", *values)
        size = self.seat.chunk_bytes
        for chunk, start in enumerate(range(0, len(data), size)):
            part = data[start : start + size]
            request = pb.ReduceRequest(chunk=chunk, spec=spec, weight=1.0)
            request.payload = part
            self._outgoing.put(request)

    def result(self, count: int) -> list[float]:
        """Receive as many elements, in whatever order their chunks come."""
        chunks: dict[int, bytes] = {}
        while sum(map(len, chunks.values())) < 4 * count:
            response = next(self._incoming)
            assert not response.HasField("failure"), response.failure.reason
            chunks[response.chunk] = response.payload
        data = b"".join(chunks[chunk] for chunk in sorted(chunks))
        return list(struct.unpack(f"<{count}f", data))

    def leave(self) -> None:
        """Give the seat back, then end the stream."""
        self._stub.Leave(pb.LeaveRequest(seat=self.seat.seat), timeout=SECONDS)
        self._outgoing.put(None)


def main(address: str) -> None:
    """Two ranks, three chunks."""
    with grpc.insecure_channel(address) as channel:
        stub = AggregatorStub(channel)
        daemon = stub.Describe(pb.DescribeRequest(), timeout=SECONDS)
        node = pb.Node(
            id=daemon.node_id, address=daemon.address, host=daemon.host, ranks=[0, 1]
        )
        ranks = [Rank(stub, number, node) for number in range(2)]
        count = daemon.chunk_bytes // 2 + 1
        for number, rank in enumerate(ranks):
            rank.bring([number + 1.0, *[2.0 * number] * (count - 2), 10.0 * number])
        means = [rank.result(count) for rank in ranks]
        for rank in ranks:
            rank.leave()
    ours = [name for name in sys.modules if name.startswith(("gradwire_", "torch"))]
    brief = [[mean[0], mean[1], mean[-2], mean[-1], sum(mean) / len(mean)] for mean in means]
    sys.stdout.write(json.dumps({"count": count, "means": brief, "ours": ours}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
