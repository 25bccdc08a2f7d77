"""One rank's seat in a job: what a training script holds."""

from __future__ import annotations

import atexit
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire._errors import LostError
from gradwire._tensor import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    import torch

    from gradwire._collective import SessionStats
    from gradwire._pipeline import Pipeline
    from gradwire._result import Result
    from gradwire._tensor import Shape


EXIT_SECONDS = 2.0
"""How long the end of the process waits for this session's threads."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session sits."""

    rank: int
    world_size: int
    node: int
    nodes: int
    generation: str
    daemon: str
    path: str


class Session:
    """A rank's seat in a job; gradwire.connect makes it. Methods may be called from any thread.

    Every rank of the job must submit the same collectives in the same order. A context manager;
    also closed when the process ends.
    """

    def __init__(self, place: Place, pipeline: Pipeline, leave: Callable[[], None]) -> None:
        self._place = place
        self._pipeline = pipeline
        self._leave = leave
        atexit.register(self._exit)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """Ranks in the job."""
        return self._place.world_size

    @property
    def node(self) -> int:
        """Index of this rank's node."""
        return self._place.node

    @property
    def nodes(self) -> int:
        """Nodes in the job."""
        return self._place.nodes

    @property
    def generation(self) -> str:
        """Random name of this life of the job."""
        return self._place.generation

    @property
    def daemon(self) -> str:
        """Address of this node's daemon."""
        return self._place.daemon

    @property
    def path(self) -> str:
        """How tensors reach the daemon: "shared_memory" or "stream"."""
        return self._place.path

    @property
    def stats(self) -> SessionStats:
        """Counts since the session began."""
        return self._pipeline.stats

    def all_reduce(
        self, tensor: torch.Tensor, op: str = "mean", weight: float | None = None
    ) -> torch.futures.Future[torch.Tensor]:
        """Reduce a tensor over all ranks, in place; returns at once.

        The future holds the tensor itself, with the same bits on every rank. Until then the
        tensor must not be touched. Any shape, contiguous or not; fp16, bf16, fp32, fp64,
        complex, int8 to int64, uint8. `op` is mean, sum, min, max or product; `weight`
        is this rank's share in a mean. 16-bit floats are summed in fp32; a mean of integers is
        truncated. What is chained to the future may submit collectives, too, if it does so in
        the same order on all ranks.

        Raises TypeError or ValueError for what can't be reduced, and LostError where the
        session is over. The future raises MismatchError or RoundTimeoutError, after which the
        session goes on, or LostError, after which it does not. What the tensor holds after an
        error is not defined: a large one may have come back in part.
        """
        shapes = [tuple(getattr(tensor, "shape", ()))]
        return self._submit(tensor, shapes, op, 1.0 if weight is None else weight)

    def submit(
        self, tensor: torch.Tensor, shapes: Sequence[Shape]
    ) -> torch.futures.Future[torch.Tensor]:
        """The mean of a flat tensor that holds parameters of these shapes; see all_reduce.

        For hooks: it is C++ code that waits for the future, and does no work meanwhile.
        """
        future = self._submit(tensor, shapes, "mean", 1.0)
        self._pipeline.call_mover()
        return future

    def hurry(self) -> None:
        """Have the work done at once, by a thread of this session: C++ code is going to wait."""
        self._pipeline.call_mover()

    def close(self) -> None:
        """Leave the job; collectives without a result fail on this rank. May be repeated."""
        atexit.unregister(self._exit)
        self._pipeline.end(LostError("this session was closed"), self._leave)

    def _exit(self) -> None:
        self.close()
        self._pipeline.join(EXIT_SECONDS)

    def _submit(
        self, tensor: torch.Tensor, shapes: Sequence[Shape], op: str, weight: float
    ) -> Result:
        self._pipeline.check_process()
        return self._pipeline.submit(tensor, describe(tensor, shapes, op, weight), weight)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "open" if self._pipeline.over is None else "over"
        return f"<gradwire.Session rank {self.rank} of {self.world_size}, {state}>"
