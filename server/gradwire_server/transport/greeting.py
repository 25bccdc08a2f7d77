"""What a node says first on a stream, and what it makes of what it hears. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire_proto import PROTOCOL
from gradwire_proto.v1 import peer_pb2 as pb
from gradwire_server.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire_proto.v1 import aggregator_pb2
    from gradwire_server.group import Group


class Greeting:
    """One node's hellos in one attempt of a generation."""

    def __init__(self, group: Group, chunk_bytes: int, attempt: int, job: str = "") -> None:
        """`job`: its name, as the tokens of this node's ranks have it."""
        self.attempt = attempt
        self._job = job
        self._group = group
        self._chunk_bytes = chunk_bytes

    def first(self, progress: Sequence[aggregator_pb2.Progress], *, key: bytes = b"") -> bytes:
        """To a node that knows nothing yet of this one; with a key, the answer to that."""
        return self._frame(pb.Hello(key=key, progress=progress))

    def another(self, lane: int, lanes: int, key: bytes) -> bytes:
        """On a further lane of so many."""
        return self._frame(pb.Hello(lane=lane, lanes=lanes, key=key))

    def again(self, lane: int, heard: int, key: bytes = b"") -> bytes:
        """On a lane that goes on."""
        return self._frame(pb.Hello(lane=lane, key=key, again=True, heard=heard))

    def over(self, key: bytes, reason: str) -> bytes:
        """The last one: the link is given up."""
        return self._frame(pb.Hello(key=key, over=reason))

    def pulse(self, key: bytes = b"") -> bytes:
        """On the pulse."""
        return self._frame(pb.Hello(pulse=True, key=key))

    def _frame(self, hello: pb.Hello) -> bytes:
        hello.protocol = PROTOCOL
        hello.generation = self._group.picture.generation
        hello.node = self._group.node
        hello.chunk_bytes = self._chunk_bytes
        hello.attempt = self.attempt
        hello.job = self._job
        return pb.Frame(hello=hello).SerializeToString()

    def check(self, hello: pb.Hello, nodes: range) -> None:
        """Raise ProtocolError where it comes from another job, or from none of these nodes."""
        expected = (PROTOCOL, self._group.picture.generation, self._chunk_bytes, self._job)
        got = (hello.protocol, hello.generation, hello.chunk_bytes, hello.job)
        if got != expected or hello.node not in nodes:
            raise ProtocolError(
                f"node {self._group.node} expected a hello with protocol, generation,"
                f" chunk_bytes and job {expected} from a node in {list(nodes)}, got {got} from"
                f" node {hello.node}"
            )
