"""Where a laboratory can't be built, its error says what is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabError, LabPlan

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = ("ip", "tc", "nsenter")


def test_a_delay_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with lab(LabPlan(2)):
        pass
    with pytest.raises(LabError, match="gcc"), lab(LabPlan(2, delay_seconds=0.01)):
        pass


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing")
def test_a_laboratory_needs_root_and_a_benchmark_without_says_so() -> None:
    powerless = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    bench = ("-m", "gradwire_ops", "bench", "--lab", "--nodes", "2", "--rate", "1gbit")
    result = subprocess.run(
        [*powerless, sys.executable, *bench],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert "run this as root" in result.stderr
    assert "Traceback" not in result.stderr
