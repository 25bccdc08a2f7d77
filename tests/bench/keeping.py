"""Keeps what programs of this folder have found, so that it can be added to and rendered."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from figures.failures import render
from figures.machine import Machine, this_machine
from figures.report import Result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from figures.setting import Row

DRILLS, SOAKS, COSTS = "failures.json", "soak.json", "resume_cost.json"


def made_now(rows: Sequence[Row], *, quick: bool, failed: bool) -> Result:
    """With today's date and this machine."""
    date = datetime.now(UTC).date().isoformat()
    return Result(rows, date, this_machine(), quick, failed=failed)


def load(store: Path) -> dict[str, Result]:
    """Nothing, where there is nothing yet."""
    if not store.exists():
        return {}
    return {
        name: Result(**{**fields, "machine": Machine(**fields["machine"])})
        for name, fields in json.loads(store.read_text()).items()
    }


def save(store: Path, results: dict[str, Result]) -> None:
    """Whole or not at all: a program may be ended at any time."""
    fresh = store.with_suffix(".new")
    fresh.write_text(json.dumps({name: asdict(one) for name, one in results.items()}, indent=1))
    fresh.replace(store)


def write_page(folder: Path) -> Path:
    """FAILURES.md, from what all these programs have found."""
    page = folder / "FAILURES.md"
    drills, soaks, costs = (load(folder / each) for each in (DRILLS, SOAKS, COSTS))
    page.write_text(render(drills, soaks, costs))
    return page
