"""What a training script can see raised.

GradwireError
+- ConnectError            no seat: no daemon, ranks that did not come, a refusal
+- AggregationError        a collective gave no result
   +- MismatchError        the ranks brought different things; the session goes on
   +- RoundTimeoutError    somebody did not come in time; the session goes on
   +- ZeroWeightError      all ranks brought weight 0 to a mean; the session goes on
   +- NonFiniteError       a result is not finite, and may not be; the session goes on
   +- DriftError           the ranks' parameters differ; the session goes on
   +- LostError            a rank or daemon is gone; the session is over
"""

from __future__ import annotations


class GradwireError(RuntimeError):
    """Root of all errors of Gradwire."""


class ConnectError(GradwireError):
    """This process got no seat in the job; the text says what was tried and what to do."""

    def __init__(self, text: str, *, final: bool = False, joining: bool = False) -> None:
        super().__init__(text)
        self.final: bool = final
        """It is of no use to try again."""
        self.joining: bool = joining
        """The daemon was there, and may know of this attempt."""


class AggregationError(GradwireError):
    """A collective gave no result."""


class MismatchError(AggregationError):
    """The ranks brought different ops, dtypes, sizes or shapes to one collective."""


class RoundTimeoutError(AggregationError):
    """A collective waited longer than the session's timeout; the text names who was missing."""


class ZeroWeightError(AggregationError, ValueError):
    """All ranks brought weight 0 to a mean: there is nothing to take it of."""


class NonFiniteError(AggregationError, ArithmeticError):
    """A result has a NaN or an infinity, and `nonfinite` is "raise"; the text names who brought
    it.
    """

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank
        """The lowest rank that brought one; None where only the sum overflowed."""


class DriftError(AggregationError):
    """The ranks' parameters, which ought to be equal, are not; the text names who differs."""


class LostError(AggregationError):
    """A rank, a daemon or the session itself is gone; connect anew."""
