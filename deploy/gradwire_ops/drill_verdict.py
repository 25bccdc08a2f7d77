"""What became of a job that something befell. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from gradwire_ops.drill_plan import KILL_RANK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SURVIVED, CLEANLY, HUNG, WRONG = "survived", "failed cleanly", "HUNG", "WRONG BITS"
BADLY = "FAILED"
"""None of the four: an error that names nobody, a rank that crashed, a next job that failed."""
LOG_SECONDS = 0.001
"""The resolution of a log's times, which are rounded down."""
CLEAN_ERRORS = frozenset({"LostError", "RoundTimeoutError"})


def expected(fault: str) -> str:
    """Where a rank dies its part of the work is gone; all else can be made good."""
    return CLEANLY if fault == KILL_RANK else SURVIVED


@dataclass(slots=True)
class Record:
    """What is known of one rank. Times are of the system's monotonic clock."""

    rank: int
    pid: int
    steps: list[tuple[float, int]] = field(default_factory=list)
    """When each was done, and a digest of its results and of all before it."""
    digest: str | None = None
    """Of the parameters at the end."""
    error: tuple[float, str, str] | None = None
    """When it was raised, its class and its text."""
    exit_code: int | None = None
    """None while it runs."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The undisturbed run."""

    steps: tuple[int, ...]
    digest: str
    seconds: float
    step_seconds: float
    """The median."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault, as it was done."""

    began: float
    ended: float
    """When whatever was taken away was back; `began` where it was over at once."""
    culprits: tuple[str, ...]
    """An error has to say one of these."""
    text: str
    victim: int | None = None
    """The rank that was killed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One repetition; the first six fields are the promised ones."""

    fault: str
    verdict: str
    detect_seconds: float | None
    recover_seconds: float | None
    steps_lost: int | None
    """Like the next: None where it can't be known, of a job that is not ours."""
    bits_equal: bool | None
    seed: int
    repetition: int
    what: str = ""
    error: str = ""
    added_seconds: float | None = None
    raised_seconds: float | None = None
    """From the fault to the last survivor's error."""
    leftovers: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """As expected, and nothing was left behind."""
        return self.verdict == expected(self.fault) and not self.leftovers

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def reference(records: Sequence[Record]) -> Reference:
    """From a job that nothing befell. Raises ValueError where its ranks differ or failed."""
    for one in records:
        if one.digest is None:
            raise ValueError(f"undisturbed, rank {one.rank} failed: {_ending(one)}")
    if len({one.digest for one in records}) != 1:
        raise ValueError("undisturbed, the ranks ended with different parameters")
    digests = [tuple(digest for _, digest in one.steps) for one in records]
    if len(set(digests)) != 1:
        raise ValueError("undisturbed, the ranks had different results")
    times = _times(records)
    lengths = sorted(after - before for before, after in pairwise(times))
    return Reference(
        steps=digests[0],
        digest=records[0].digest or "",
        seconds=times[-1] - times[0],
        step_seconds=lengths[len(lengths) // 2],
    )


def judge(
    records: Sequence[Record], strike: Strike, undisturbed: Reference, next_job_right: bool
) -> tuple[str, str]:
    """The verdict, and what is to be said to it."""
    survivors = [one for one in records if one.rank != strike.victim]
    wrong = list(_wrong(records, undisturbed))
    running = [one.rank for one in survivors if one.exit_code is None]
    if running:
        return HUNG, f"ranks {running} did not end"
    if wrong:
        return WRONG, "; ".join(wrong)
    if all(one.digest is not None and one.exit_code == 0 for one in records):
        return SURVIVED, ""
    texts = [f"rank {one.rank}: {_ending(one)}" for one in survivors if one.digest is None]
    dirty = list(_dirty(survivors, strike.culprits))
    if not next_job_right:
        dirty.append("the same daemons did not run the next job right")
    return (BADLY, "; ".join(dirty)) if dirty else (CLEANLY, texts[0])


def _wrong(records: Sequence[Record], undisturbed: Reference) -> Iterator[str]:
    for one in records:
        for step, ((_, got), want) in enumerate(
            zip(one.steps, undisturbed.steps, strict=False)
        ):
            if got != want:
                yield f"rank {one.rank} has other bits from step {step} on"
                break
        else:
            if one.digest not in (None, undisturbed.digest):
                yield f"rank {one.rank} has other parameters at the end"


def _dirty(survivors: Sequence[Record], culprits: Sequence[str]) -> Iterator[str]:
    for one in survivors:
        if one.error is None:
            yield f"rank {one.rank}: {_ending(one)}"
            continue
        _, kind, text = one.error
        if kind not in CLEAN_ERRORS:
            yield f"rank {one.rank} raised {kind}: {text}"
        elif not any(culprit in text for culprit in culprits):
            yield f"rank {one.rank} named none of {list(culprits)}: {text}"


def _ending(one: Record) -> str:
    if one.error is not None:
        return f"{one.error[1]}: {one.error[2]}"
    done = "after its last step " if one.digest is not None else ""
    return f"it ended {done}with exit code {one.exit_code}"


def bits_equal(records: Sequence[Record], undisturbed: Reference) -> bool:
    """Of all steps that any rank finished, and of the parameters of those that ended well."""
    return not list(_wrong(records, undisturbed))


def steps_lost(records: Sequence[Record], strike: Strike, undisturbed: Reference) -> int:
    """Steps that somebody had begun and that not all survivors finished: to be done again.

    0 where all ended well: with us a step is finished, not begun anew.
    """
    if all(one.digest is not None for one in records):
        return 0
    survivors = [one for one in records if one.rank != strike.victim]
    begun = max(len(one.steps) + (one.digest is None) for one in records)
    finished = min(len(one.steps) for one in survivors)
    return min(begun, len(undisturbed.steps)) - finished


def detect_seconds(
    records: Sequence[Record], strike: Strike, words: Sequence[float]
) -> float | None:
    """From the fault to the first word of it: an error, or a line of a daemon's log."""
    errors = [one.error[0] for one in records if one.error is not None]
    after = [at - strike.began for at in (*errors, *words)]
    return min((max(0.0, each) for each in after if each > -LOG_SECONDS), default=None)


def recover_seconds(records: Sequence[Record], strike: Strike) -> float | None:
    """From the fault's end to the first step that all ranks finished after it."""
    after = [at - strike.ended for at in _times(records) if at > strike.ended]
    return min(after) if after else None


def raised_seconds(records: Sequence[Record], strike: Strike) -> float | None:
    """From the fault to the last error."""
    errors = [one.error[0] - strike.began for one in records if one.error is not None]
    return max(errors) if errors else None


def added_seconds(records: Sequence[Record], undisturbed: Reference) -> float | None:
    """What the steps took beyond those of the undisturbed run; None where not all were done."""
    times = _times(records)
    if len(times) < len(undisturbed.steps):
        return None
    return times[-1] - times[0] - undisturbed.seconds


def _times(records: Sequence[Record]) -> list[float]:
    """When each step was done by all ranks."""
    together = min(len(one.steps) for one in records)
    return [max(one.steps[step][0] for one in records) for step in range(together)]
