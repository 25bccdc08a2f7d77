"""The future of a collective, resolved where that can't lock up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

RESOLVERS = 10_000
"""Futures whose callbacks may wait at the same time: no bound to speak of, since what one waits
for may need another. Threads are made where none is idle."""


class Result(torch.futures.Future[torch.Tensor]):
    """A torch future that knows whether anything is chained to it.

    What a user chains may itself wait for a collective (PowerSGD does), so it should not run on
    the thread that hears results: then a pool resolves the future, whose threads may all wait.
    A future that somebody merely waits for is resolved on the spot, which is 0.2 ms faster.
    """

    def __init__(self, hear: Callable[[Result], None]) -> None:
        super().__init__()
        self._hear = hear
        self._settling = threading.Lock()
        self._chained = False

    def wait(self) -> torch.Tensor:
        """See torch.futures.Future. The caller itself listens for results meanwhile."""
        self._hear(self)
        return super().wait()

    def then(self, callback: Callable[..., Any]) -> torch.futures.Future[Any]:
        """See torch.futures.Future."""
        with self._settling:
            self._chained = True
        return super().then(callback)

    def add_done_callback(self, callback: Callable[..., Any]) -> None:
        """See torch.futures.Future."""
        with self._settling:
            self._chained = True
        super().add_done_callback(callback)

    def settle(self, outcome: Callable[[], torch.Tensor] | Exception) -> None:
        """Set the result that outcome returns, or the error that it is or raises."""
        with self._settling:
            if not self._chained:
                self._set(outcome)
                return
        _resolvers().submit(self._set, outcome)

    def _set(self, outcome: Callable[[], torch.Tensor] | Exception) -> None:
        if isinstance(outcome, Exception):
            self.set_exception(outcome)  # type: ignore[arg-type]  # torch's hint is wrong
            return
        try:
            tensor = outcome()
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
            self.set_exception(error)  # type: ignore[arg-type]  # as above
        else:
            self.set_result(tensor)


@cache
def _resolvers() -> ThreadPoolExecutor:
    """A pool that grows when all its threads wait."""
    return ThreadPoolExecutor(RESOLVERS, "gradwire-resolve")
