"""Pictures of the losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from curves.catalogue import WIRES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from curves.catalogue import Run, Subject

SMOOTHED_STEPS = 10
INCHES = (11, 4.2)
DOTS_PER_INCH = 110


def draw(subject: Subject, runs: Sequence[Run], path: Path) -> None:
    """Write a picture: the loss against steps, and against bytes, one line for each wire."""
    figure = Figure(figsize=INCHES, layout="constrained")
    by_step, by_bytes = figure.subplots(1, 2, sharey=True)
    for number, wire in enumerate(WIRES):
        chosen = [run for run in runs if (run.subject, run.wire) == (subject.name, wire.name)]
        if not chosen:
            continue
        losses = _smooth(np.mean([run.losses for run in chosen], axis=0))
        steps = np.arange(1, len(losses) + 1)
        sent = np.mean([run.bytes_per_step for run in chosen])
        style = {"label": wire.title, "color": f"C{number}", "linewidth": 1.2}
        by_step.plot(steps, losses, **style)
        by_bytes.plot(steps * sent / 1e6, losses, **style)
    by_step.set(xlabel="step", ylabel=f"loss in training, mean of {SMOOTHED_STEPS} steps")
    by_bytes.set(xlabel="MB sent by a node", xscale="log")
    for axes in (by_step, by_bytes):
        axes.grid(alpha=0.3)
    by_step.legend(fontsize="small")
    figure.suptitle(subject.title)
    # No date and no version in it: the same figures give the same file.
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})


def _smooth(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the last steps, fewer at the beginning."""
    sums = np.concatenate(([0.0], np.cumsum(losses)))
    ends = np.arange(1, len(sums))
    begins = np.maximum(ends - SMOOTHED_STEPS, 0)
    means: NDArray[np.float64] = (sums[ends] - sums[begins]) / (ends - begins)
    return means
