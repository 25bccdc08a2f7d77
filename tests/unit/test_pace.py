"""What a rank that sends its tensors says of how it trains."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from gradwire import _pace
from gradwire._collective import Collective
from gradwire._order import reducing
from gradwire._result import Result
from gradwire._stream import Streaming
from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    import pytest

SECOND = 10**9


class Line:
    """See gradwire._channel.Line: a daemon that hands back what it is sent."""

    daemon = "the daemon at nowhere"

    def __init__(self) -> None:
        self.communicating: list[int] = []
        self._sent: list[tuple[int, memoryview]] = []

    def send(self, request: pb.ReduceRequest, payload: memoryview) -> None:
        self.communicating.append(request.communicating_nanoseconds)
        self._sent.append((request.sequence, payload))

    def receive(self) -> tuple[pb.ReduceResponse, memoryview]:
        sequence, payload = self._sent.pop(0)
        return pb.ReduceResponse(sequence=sequence), payload

    def close(self) -> None:
        pass


def nothing(_: object, __: float) -> None:
    """Nobody waits."""


def test_a_rank_that_computes_between_two_tensors_does_not_communicate_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0
    monkeypatch.setattr(_pace, "time", SimpleNamespace(monotonic_ns=lambda: now))
    line = Line()
    carrier = Streaming(line, 0, 1024, 4)
    for sequence in range(2):
        now += 100 * SECOND
        order = reducing(torch.ones(4), [(4,)], "sum", 1.0)
        carrier.put(Collective(sequence, order, Result(nothing)))
        assert carrier.advance() is True
        carrier.receive()
        now += SECOND
        assert carrier.advance() is not False
        carrier.resolved(sequence + 1, 16)
    assert line.communicating == [0, SECOND]
