"""What can go wrong in a daemon, and whose fault it is.

GradwireServerError
+- SettingsError       the operator's: a flag, a variable or the file
+- StartError          the machine's: a port or path is taken, memory is short
+- RefusedError        the caller's: this rank can't have this seat
|  +- BehindError      it knows of an earlier attempt only
|  +- LimitError       it, or all together, have as much as they may
|  +- StrangerError    it is not who it says it is
|  +- UnprovenError    it does not say who it is
+- CorruptedError      the network's: bytes changed on the way; the frame comes again
+- ReductionError      a collective failed; becomes a Failure message
   +- MismatchError    the ranks brought different things
   +- LostError        a rank or a daemon is gone
   +- LateError        somebody did not come in time
   +- WeightError      all ranks brought weight 0 to a mean
   +- OverError        the job has failed before
   +- ProtocolError    a message broke the rules
   +- OverError        the job has failed before
   +- StoppingError    this daemon is stopping
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from gradwire_proto.v1 import aggregator_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_RANKS = 1024
"""That a failure names: more would only make long lines."""


class GradwireServerError(Exception):
    """Root of the daemon's own errors."""


class SettingsError(GradwireServerError):
    """The settings are wrong; the text lists every mistake, one a line."""


class StartError(GradwireServerError):
    """The daemon can't start; the text says what is in the way."""


class RefusedError(GradwireServerError):
    """A rank asked for something it can't have; the job is unharmed."""


class BehindError(RefusedError):
    """The generation is at a later attempt: the rank is to come again with that."""

    def __init__(self, attempt: int) -> None:
        super().__init__(f"the generation was taken up again: this is attempt {attempt}")
        self.attempt = attempt


class LimitError(RefusedError):
    """There is a limit, and it is reached; the text says which setting it is."""


class StrangerError(RefusedError):
    """A caller's certificate is not that of whom it says it is."""


class UnprovenError(RefusedError):
    """A caller has shown nothing that says who it is."""


class CorruptedError(GradwireServerError):
    """A frame is not what it was when it was sent; of the link, too many are."""


class ReductionError(GradwireServerError):
    """A collective, or the whole job, failed."""

    kind: ClassVar[pb.Failure.Kind] = pb.Failure.KIND_UNSPECIFIED

    def __init__(
        self, text: str = "", *, round_: int | None = None, ranks: Iterable[int] = ()
    ) -> None:
        """The text says it all; machines read of which collective and ranks it is."""
        super().__init__(text)
        self.round = round_
        self.ranks = tuple(ranks)

    def failure(self, scope: pb.Failure.Scope) -> pb.Failure:
        """The message that says so."""
        return pb.Failure(
            scope=scope,
            kind=self.kind,
            reason=str(self),
            round=self.round,
            ranks=self.ranks,
        )


class MismatchError(ReductionError):
    """The ranks brought different things to one collective."""

    kind = pb.Failure.KIND_MISMATCH


class LostError(ReductionError):
    """A rank or a daemon is gone."""

    kind = pb.Failure.KIND_LOST


class LateError(ReductionError):
    """A round waited longer than the job's timeout."""

    kind = pb.Failure.KIND_TIMEOUT


class WeightError(ReductionError):
    """All ranks brought weight 0: there is nothing to take a mean of."""

    kind = pb.Failure.KIND_WEIGHT

    @classmethod
    def of(cls, sequence: int, world_size: int) -> WeightError:
        """For one collective."""
        return cls(
            f"round {sequence}: all {world_size} ranks brought weight 0, so there is nothing to"
            " take a mean of; give one of them a weight above 0",
            round_=sequence,
        )


class OverError(ReductionError):
    """The generation is over here, for the reason that is told."""

    kind = pb.Failure.KIND_LOST


class ProtocolError(ReductionError):
    """A message that has no place where it came."""

    kind = pb.Failure.KIND_PROTOCOL


class StoppingError(ReductionError):
    """This daemon is stopping."""

    kind = pb.Failure.KIND_STOPPING


_BY_KIND: dict[pb.Failure.Kind, type[ReductionError]] = {
    error.kind: error
    for error in (
        MismatchError,
        LostError,
        LateError,
        WeightError,
        ProtocolError,
        StoppingError,
    )
}


def from_failure(failure: pb.Failure) -> ReductionError:
    """The error that a peer's Failure message speaks of."""
    return _BY_KIND.get(failure.kind, ReductionError)(
        failure.reason,
        round_=failure.round if failure.HasField("round") else None,
        ranks=failure.ranks[:MOST_RANKS],
    )
