"""`make bench`: the suite runs, and leaves a page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SUITE = Path(__file__).parents[1] / "bench" / "suite.py"
TIMEOUT_SECONDS = 60


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SUITE), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_a_quick_run_of_some_settings_leaves_their_figures_on_the_page(tmp_path: Path) -> None:
    only = ("--only", "copy", "--only", "interfaces", "--only", "training-fast-2")
    result = suite("--quick", "--folder", str(tmp_path), *only)
    assert result.returncode == 0, result.stderr
    kept = json.loads((tmp_path / "results.json").read_text())
    assert {name: len(found["rows"]) for name, found in kept.items()} == {
        "copy": 1,
        "interfaces": 1,
        "training-fast-2": 1,
    }
    assert kept["training-fast-2"]["rows"][0]["overlapped"]
    page = (tmp_path / "RESULTS.md").read_text()
    for words in (
        "A quick run",
        "2 links of 500mbit each",
        "a plain copy",
        "2 nodes x 1 rank, fast",
    ):
        assert words in page


def test_a_quick_run_does_not_overwrite_the_figures() -> None:
    result = suite("--quick", "--only", "copy")
    assert result.returncode == 2
    assert "--folder" in result.stderr
