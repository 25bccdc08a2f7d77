"""Tasks of one owner, of which none is lost or fails in silence."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gradwire_server.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)


class Tasks:
    """Keeps them until they end."""

    def __init__(self, fault: Callable[[ProtocolError], None]) -> None:
        """`fault` is told of what a task raises, which is a mistake of ours."""
        self._fault = fault
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def end(self, patience_seconds: float) -> None:
        """Return when all have ended, the last of them cancelled after so long."""
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=patience_seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a fault of this daemon's own", exc_info=error)
            self._fault(ProtocolError(f"the daemon made a mistake of its own: {error!r}"))
