"""CONVERGENCE.md, from what was trained. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from curves.catalogue import SUBJECTS, WIRES
from gradwire_ops.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from curves.catalogue import Run, Subject, Wire
    from figures.machine import Machine

HEAD = """# Convergence

`make convergence` runs all of this and writes this file anew. Two networks are trained over
every wire: two nodes of two ranks each, on loopback, {seeds} for each wire, {steps};
everything but the rounding is the same: the first parameters, the order of the samples, the
optimizer. The spread is the standard deviation over the seeds, the difference that of the
means. Bytes are what a node sends to the other one, on average, in a step, as the daemons
count them, frames included; gloo's are worked out for a ring of the four ranks. PowerSGD is
torch's, of rank 2, exact in its first 30 steps, over our process group. At 1 % top-k sends an
element once in a hundred steps, on average: what that costs depends on how long is trained,
and this is short."""

SHORT = "**A short run. These figures mean nothing.**"
COLUMNS = ("spread", "difference to gloo", "bytes a step and node", "of gloo's")


@dataclass(frozen=True, slots=True)
class Result:
    """What several seeds came to; the measure is the accuracy in percent, or the loss."""

    mean: float
    spread: float
    bytes_per_step: float
    counted: bool
    seeds: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one thing that was aimed for."""

    subject: str
    wire: str
    aim: str
    found: str
    reached: bool | None
    """None: not measured."""

    @property
    def word(self) -> str:
        """For people."""
        return {True: "reached", False: "**missed**", None: "not measured"}[self.reached]


def result(subject: Subject, wire: Wire, runs: Sequence[Run]) -> Result | None:
    """None where there is no such run."""
    chosen = [run for run in runs if (run.subject, run.wire) == (subject.name, wire.name)]
    if not chosen:
        return None
    values = [_value(subject, run) for run in chosen]
    return Result(
        mean=statistics.fmean(values),
        spread=statistics.stdev(values) if len(values) > 1 else 0.0,
        bytes_per_step=statistics.fmean(run.bytes_per_step for run in chosen),
        counted=all(run.counted for run in chosen),
        seeds=len(chosen),
    )


def _value(subject: Subject, run: Run) -> float:
    if subject.measure == "loss":
        return run.loss
    assert run.accuracy is not None, "this subject has one"
    return 100 * run.accuracy


def verdicts(runs: Sequence[Run]) -> Iterator[Verdict]:
    """On every bar of every wire, and on the ranks' bits."""
    for subject in SUBJECTS:
        control = result(subject, WIRES[0], runs)
        for wire in WIRES:
            verdict = _verdict(subject, wire, control, result(subject, wire, runs))
            if verdict is not None:
                yield verdict
    parted = [f"{run.subject} over {run.wire}" for run in runs if not run.same_bits]
    found = f"not in {', '.join(dict.fromkeys(parted))}" if parted else "in all"
    yield Verdict(
        "both", "all", "all ranks end with the same bits", found, not parted if runs else None
    )


def _verdict(
    subject: Subject, wire: Wire, control: Result | None, found: Result | None
) -> Verdict | None:
    """None where nothing was aimed for."""
    most = _most(subject, wire, control)
    if most is None:
        return None
    if control is None or found is None:
        return Verdict(subject.title, wire.title, _aim(subject, wire), "", None)
    worse = _worse(subject, control, found)
    # Within the noise is neither worse nor better; else what is better has lost nothing.
    reached = abs(worse) <= most if wire.within_noise else worse <= most
    return Verdict(
        subject.title,
        wire.title,
        _aim(subject, wire),
        f"{_difference(subject, control, found)}, of {_amount(subject, control, most)}",
        reached,
    )


def _most(subject: Subject, wire: Wire, control: Result | None) -> float | None:
    """By which the measure may be worse than gloo's, in its unit."""
    if wire.within_noise:
        return 0.0 if control is None else max(control.spread, _grain(subject, control))
    if subject.measure == "accuracy":
        return wire.most_points
    if wire.most_loss is None:
        return None
    return 0.0 if control is None else wire.most_loss * control.mean


def _grain(subject: Subject, control: Result) -> float:
    return subject.grain * (100 if subject.measure == "accuracy" else control.mean)


def _worse(subject: Subject, control: Result, found: Result) -> float:
    rise = found.mean - control.mean
    return rise if subject.measure == "loss" else -rise


def _aim(subject: Subject, wire: Wire) -> str:
    if wire.within_noise:
        return "gloo's, but for what a seed changes"
    if subject.measure == "accuracy":
        return f"at most {wire.most_points:g} points less"
    return f"at most {wire.most_loss:.0%} more loss"


def _difference(subject: Subject, control: Result, found: Result) -> str:
    rise = found.mean - control.mean
    if subject.measure == "accuracy":
        return f"{rise:+.2f} points"
    return f"{rise / control.mean:+.2%}"


def _amount(subject: Subject, control: Result, amount: float) -> str:
    if subject.measure == "accuracy":
        return f"{amount:.2f} points"
    return f"{amount / control.mean:.2%}"


def render(
    runs: Sequence[Run], failed: Sequence[str], date: str, machine: Machine, *, short: bool
) -> str:
    """The page; `failed` are trainings that have no figures."""
    seeds = len({run.seed for run in runs})
    lengths = {run.subject: len(run.losses) for run in runs}
    steps = ", ".join(f"{length} steps of {subject}" for subject, length in lengths.items())
    parts = [
        HEAD.format(seeds=f"{seeds} seed{'s' * (seeds != 1)}", steps=steps),
        *([SHORT] if short else []),
        *([f"**These failed, and have no figures: {', '.join(failed)}.**"] if failed else []),
        "## Made on",
        _made_on(date, machine),
        "## What was aimed for",
        _aims(list(verdicts(runs))),
    ]
    for subject in SUBJECTS:
        if any(run.subject == subject.name for run in runs):
            picture = f"![loss](CONVERGENCE-{subject.name}.png)"
            parts += [f"## {subject.title}", subject.text, _table(subject, runs), picture]
    return "\n\n".join(parts) + "\n"


def _made_on(date: str, machine: Machine) -> str:
    lines = [("date", date)]
    lines += [
        (each.name.replace("_", " "), getattr(machine, each.name)) for each in fields(machine)
    ]
    return "\n".join(("| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in lines)))


def _aims(found: Sequence[Verdict]) -> str:
    lines = ["| training | wire | aim | found | |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.subject} | {one.wire} | {one.aim} | {one.found} | {one.word} |"
        for one in found
    ]
    return "\n".join(lines)


def _table(subject: Subject, runs: Sequence[Run]) -> str:
    results = {wire: result(subject, wire, runs) for wire in WIRES}
    control = results[WIRES[0]]
    measure = "accuracy" if subject.measure == "accuracy" else "loss on the test"
    lines = [f"| {' | '.join(('wire', measure, *COLUMNS))} |", "|---|---|---|---|---|---|"]
    for wire, found in results.items():
        if found is not None:
            lines.append(f"| {wire.title} | {' | '.join(_cells(subject, control, found))} |")
    return "\n".join(lines)


def _cells(subject: Subject, control: Result | None, found: Result) -> Iterator[str]:
    percent = subject.measure == "accuracy"
    yield f"{found.mean:.2f} %" if percent else f"{found.mean:.4f}"
    yield f"{found.spread:.2f}" if percent else f"{found.spread:.4f}"
    others = control is not None and control is not found
    yield _difference(subject, control, found) if control is not None and others else ""
    yield format_size(found.bytes_per_step) + ("" if found.counted else " (worked out)")
    share = found.bytes_per_step / control.bytes_per_step if control is not None else None
    yield "" if share is None or not others else f"{share:.3f}"
