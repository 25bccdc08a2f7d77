"""How a rank's tensors travel to the daemon and back, as the pipeline sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gradwire._errors import LostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from gradwire._collective import Collective
    from gradwire._order import Order
    from gradwire._results import Saved
    from gradwire_proto.chunks import Cut
    from gradwire_proto.v1 import aggregator_pb2 as pb


class Carrier(Protocol):
    """Takes tensors to the daemon and back.

    One thread at a time calls; others may meanwhile call put, receive, wake and hang_up.
    """

    path: str
    """How tensors travel: "shared_memory" or "stream"."""
    daemon: str
    """The daemon at the other end, in words."""
    told_early: bool
    """A failure is told once, to ranks that have not come to it, too."""

    def begin_at(self, sequence: int) -> None:
        """All collectives before this one have ended."""
        ...

    def put(self, collective: Collective) -> None:
        """Take a tensor, from its first chunk without a result; those before it go first."""
        ...

    def cut_of(self, order: Order) -> Cut:
        """Into which chunks a tensor is cut."""
        ...

    def skip(self, sequence: int) -> None:
        """This collective had failed before the rank came to it."""
        ...

    def advance(self) -> Collective | bool:
        """Do one piece of work: a collective that it completes, True, or False for none."""
        ...

    def wait(self, seconds: float) -> None:
        """Return when there may be work, or after so many seconds."""
        ...

    def wake(self) -> None:
        """Let `wait` return."""
        ...

    def drop(self, sequence: int) -> None:
        """The collective has failed, whether this rank has come to it or not."""
        ...

    def resolved(self, collectives: int, size: int) -> None:
        """All before this number have ended; the last one has so many bytes."""
        ...

    def drain(self) -> Iterator[Collective]:
        """Nothing new comes: take the results that are there. Yields what this completes."""
        ...

    def saved(self) -> dict[tuple[int, int], Saved]:
        """Results that some rank may lack, by sequence and chunk."""
        ...

    def receive(self) -> pb.ReduceResponse | None:
        """Wait for what the daemon says: a failure, a call to join again, or None for what
        `advance` deals with.

        Raises LostError where the line breaks or is hung up.
        """
        ...

    def hang_up(self) -> None:
        """End the line; `receive`, in whatever thread, raises."""
        ...

    def close(self, *, orphaned: bool) -> None:
        """Let go of everything; orphaned where the daemon can't tidy up any more."""
        ...


class Outcome(Protocol):
    """Where the outcome of a collective goes."""

    def done(self) -> bool:
        """It has come."""
        ...

    def settle(self, outcome: Callable[[], torch.Tensor] | Exception) -> None:
        """Take the result that outcome returns, or the error that it is."""
        ...


class Nowhere:
    """See Carrier: between one seat and the next."""

    def __init__(self, before: Carrier) -> None:
        self.path = before.path
        self.daemon = before.daemon
        self.told_early = before.told_early
        self._cut_of = before.cut_of

    def begin_at(self, sequence: int) -> None:
        """See Carrier."""

    def put(self, collective: Collective) -> None:
        """See Carrier."""

    def cut_of(self, order: Order) -> Cut:
        """See Carrier."""
        return self._cut_of(order)

    def skip(self, sequence: int) -> None:
        """See Carrier."""

    def advance(self) -> bool:
        """See Carrier."""
        return False

    def wait(self, seconds: float) -> None:
        """See Carrier."""

    def wake(self) -> None:
        """See Carrier."""

    def drop(self, sequence: int) -> None:
        """See Carrier."""

    def resolved(self, collectives: int, size: int) -> None:
        """See Carrier."""

    def drain(self) -> Iterator[Collective]:
        """See Carrier."""
        return iter(())

    def saved(self) -> dict[tuple[int, int], Saved]:
        """See Carrier."""
        return {}

    def receive(self) -> pb.ReduceResponse | None:
        """See Carrier."""
        raise LostError(f"{self.daemon} is gone")

    def hang_up(self) -> None:
        """See Carrier."""

    def close(self, *, orphaned: bool) -> None:
        """See Carrier."""
