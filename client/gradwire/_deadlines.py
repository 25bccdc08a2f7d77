"""Ends collectives in time that nobody waits for in Python: DDP waits in C++, for a future."""

from __future__ import annotations

import heapq
import threading
import time
from itertools import count
from typing import Protocol
from weakref import ReferenceType, ref


class Perishable(Protocol):
    """Something that may come too late."""

    def expire(self) -> None:
        """The deadline has passed."""
        ...


class Deadlines:
    """Deadlines, and the thread that keeps them; it runs while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, ReferenceType[Perishable]]] = []
        self._numbers = count()
        self._running = False

    def add(self, deadline: float, perishable: Perishable) -> None:
        """Have it expire at this time of time.monotonic(). It is not kept alive for that."""
        with self._changed:
            entry = (deadline, next(self._numbers), ref(perishable))
            heapq.heappush(self._heap, entry)
            if not self._running:
                self._running = True
                threading.Thread(
                    target=self._watch, name="gradwire-deadlines", daemon=True
                ).start()
            elif self._heap[0] is entry:
                self._changed.notify()

    def clear(self) -> None:
        """Forget all, and let the thread end."""
        with self._changed:
            self._heap.clear()
            self._changed.notify()

    def _watch(self) -> None:
        while (expired := self._next()) is not None:
            perishable = expired()
            if perishable is not None:
                perishable.expire()

    def _next(self) -> ReferenceType[Perishable] | None:
        """The next that expires, when it does; None where there is no more."""
        with self._changed:
            while self._heap:
                self._drop_the_gone()
                left = self._heap[0][0] - time.monotonic() if self._heap else 0.0
                if self._heap and left <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(left)
            self._running = False
            return None

    def _drop_the_gone(self) -> None:
        while self._heap and self._heap[0][2]() is None:
            heapq.heappop(self._heap)
