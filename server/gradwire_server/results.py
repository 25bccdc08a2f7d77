"""Which result slot is in use, and by whom. Pure.

A rank frees a result without saying so: by contributing again in the slot whose result it has
read. Ranks use their slots in turn, so never more results are held than there are slots.
"""

from __future__ import annotations

from collections import deque


class ResultSlots:
    """The result slots of one arena."""

    def __init__(self, slots: int) -> None:
        self._free = deque(range(slots))
        self._readers: dict[int, set[int]] = {}
        self._held: dict[tuple[int, int], int] = {}

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return len(self._free)

    def take(self) -> int | None:
        """A free slot for a round that begins, or None."""
        return self._free.popleft() if self._free else None

    def publish(self, result: int, readers: dict[int, int]) -> None:
        """The result is there; readers maps each rank that reads it to the slot it brought."""
        self._readers[result] = set(readers)
        for rank, slot in readers.items():
            self._held[rank, slot] = result
        if not readers:
            self.discard(result)

    def discard(self, result: int) -> None:
        """Nobody will read it."""
        self._readers.pop(result, None)
        self._free.append(result)

    def reuse(self, rank: int, slot: int) -> bool:
        """A rank brings a chunk in a slot again. True where that frees a result slot."""
        result = self._held.pop((rank, slot), None)
        if result is None:
            return False
        readers = self._readers[result]
        readers.discard(rank)
        if readers:
            return False
        self.discard(result)
        return True

    def forget(self, rank: int) -> None:
        """A rank is gone and reads nothing more."""
        for holder, slot in [held for held in self._held if held[0] == rank]:
            self.reuse(holder, slot)
