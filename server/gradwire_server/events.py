"""What has happened lately: the daemon's own log, as far as people look back."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING

from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_EVENTS = 200

MOST_LETTERS = 2000
"""Of one event: some texts quote what others have sent."""

LOGGER = "gradwire_server"


class Events(logging.Handler):
    """Keeps the latest lines of the log. Lines that the log's level leaves out are not among
    them. What a line is of stands in its `extra`: generation, round, rank or ranks.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._latest: deque[pb.Event] = deque(maxlen=MOST_EVENTS)
        # A deque must not change while it is read.
        self._reading = threading.Lock()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Within the block, hear what the daemon logs."""
        logger = logging.getLogger(LOGGER)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            event = _event(record)
        except Exception:  # noqa: BLE001 - as every handler: a bad line must not harm who logs
            self.handleError(record)
            return
        with self._reading:
            self._latest.append(event)

    def latest(self) -> list[pb.Event]:
        """The latest last."""
        with self._reading:
            return list(self._latest)


def _event(record: logging.LogRecord) -> pb.Event:
    ranks = getattr(record, "ranks", None) or ()
    rank = getattr(record, "rank", None)
    event = pb.Event(
        level=_level(record.levelno),
        text=record.getMessage()[:MOST_LETTERS],
        generation=getattr(record, "generation", None) or "",
        round=getattr(record, "round", None),
        ranks=ranks or ([] if rank is None else [rank]),
    )
    event.time.FromNanoseconds(int(record.created * 1e9))
    return event


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    return "warning" if number >= logging.WARNING else "info"
