"""A pipeline that is ended while it hears that its daemon is gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gradwire._carrier import Nowhere
from gradwire._errors import LostError
from gradwire._recovery import Recovery
from gradwire._resuming import ResumingPipeline

if TYPE_CHECKING:
    from gradwire_proto.v1 import aggregator_pb2 as pb

PATIENCE_SECONDS = 10.0


class Line(Nowhere):
    """Breaks when it is told to; counts how often it is let go of."""

    path = daemon = "a line"
    told_early = True

    def __init__(self) -> None:
        self.breaks = threading.Event()
        self.broken = threading.Event()
        self.closed = 0

    def receive(self) -> pb.ReduceResponse | None:
        self.breaks.wait(PATIENCE_SECONDS)
        self.broken.set()
        raise LostError("it is gone")

    def close(self, *, orphaned: bool) -> None:
        self.closed += 1


class NoWayBack(Recovery):
    def __init__(self) -> None:
        self.asked = 0

    def rejoin(self, *_: object) -> Line:
        self.asked += 1
        return Line()


def test_what_is_over_lets_go_of_its_seat_once_and_takes_no_other() -> None:
    line, recovery = Line(), NoWayBack()
    pipeline = ResumingPipeline(recovery, line, 5.0, lambda _, __: None, 5.0)
    with pipeline._working:  # noqa: SLF001 - who works now, and ends it
        line.breaks.set()
        assert line.broken.wait(PATIENCE_SECONDS)
        while not pipeline._resting:  # noqa: SLF001 - the listener waits for its turn
            pass
        pipeline.end(LostError("another way of this rank is lost"))
    for thread in threading.enumerate():
        if thread.name in ("gradwire-mover", "gradwire-listener"):
            thread.join(PATIENCE_SECONDS)
    assert (line.closed, recovery.asked) == (1, 0)
