"""FAILURES.md says plainly how many jobs survived, and what grew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from figures.failures import QUICK, render, slope
from figures.machine import Machine
from figures.report import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

MACHINE = Machine(
    "A CPU", 2, 23.5, "Linux 6.1", "3.11.7", "2.13.0", "1.85.3", "0.1.0 at abcdef"
)


def found(fault: str, verdict: str, **others: object) -> dict[str, Any]:
    return {
        "fault": fault,
        "verdict": verdict,
        "detect_seconds": None,
        "recover_seconds": 0.5,
        "added_seconds": 2.0,
        "raised_seconds": None,
        "bits_equal": True,
        "leftovers": [],
        **others,
    }


def result(*rows: Mapping[str, Any], quick: bool = False, failed: bool = False) -> Result:
    return Result(rows, "2026-01-02", MACHINE, quick, failed)


def line_of(page: str, *words: str) -> str:
    (line,) = [line for line in page.splitlines() if all(word in line for word in words)]
    return line


def test_what_was_not_expected_stands_out() -> None:
    rows = [found("partition", "survived") for _ in range(3)]
    rows.append(found("partition", "HUNG", bits_equal=False, leftovers=["an arena"]))
    page = render({"partition": result(*rows)}, {})
    assert line_of(page, "partition", "survived") == (
        "| partition | 4 | 3 survived | **1 HUNG** | 3 | 1 |"
    )
    assert "abcdef" in page


def test_of_a_killed_rank_a_clean_failure_is_expected() -> None:
    rows = [found("kill-rank", "failed cleanly", recover_seconds=None, added_seconds=None)]
    page = render({"kill-rank": result(*rows)}, {})
    assert "| kill-rank | 1 | 1 failed cleanly | none | 1 | 0 |" in page
    assert line_of(page, "| kill-rank | -") == "| kill-rank | - | - | - | - |"


def test_times_are_a_spread() -> None:
    rows = [found("partition", "survived", recover_seconds=value) for value in range(1, 101)]
    page = render({"partition": result(*rows)}, {})
    assert "| partition | - | 50.00 / 95.00 / 100.00 | 2.00 / 2.00 / 2.00 | - |" in page


def test_a_quick_or_broken_run_says_so() -> None:
    page = render({"partition": result(quick=True, failed=True)}, {})
    assert QUICK in page
    assert "These gave nothing, or not all: partition" in page


def test_growth_is_shown_with_its_sign() -> None:
    row = {
        "process": "daemons",
        "times": 100_000,
        "megabytes": 0.126,
        "descriptors": 0.0,
        "threads": -0.5,
        "arenas": 0.0,
        "left": 0,
    }
    page = render({}, {"small rounds": result(row)})
    assert "| small rounds: daemons | 100,000 | +0.13 | +0.00 | -0.50 | +0.00 | 0 |" in page


def test_a_slope_is_the_least_squares_line() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 0), (1, 3), (2, 0)]) == pytest.approx(0)
    assert slope([(1, 1)]) == slope([]) == 0


def test_what_it_costs_is_the_median_of_the_runs_with_their_range() -> None:
    rows = [
        {"run": run, "size": "64KiB", "off_seconds": 0.002, "on_seconds": 0.002 * ratio}
        for run, ratio in enumerate((1.03, 0.99, 1.01))
    ]
    page = render({}, {}, {"resume": result(*rows)})
    assert "| 64KiB | 3 | 2 ms | 2.02 ms | +1.0 % (-1.0 to +3.0) |" in page
