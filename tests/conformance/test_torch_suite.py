"""torch's own distributed tests, on the backend "grpc"; `make conformance` runs gloo, too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
EXPECTED = 89
"""What gloo passes on torch 2.13.0, less two that torch refuses for other backends."""

MOST_SECONDS = 480


@pytest.mark.timeout(MOST_SECONDS + 60)
def test_what_gloo_passes_grpc_passes_too() -> None:
    pytest.importorskip("expecttest", reason="torch's tests need it")
    done = subprocess.run(
        [sys.executable, RUN, "--backend", "grpc"],
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )
    summary = re.search(r"^grpc: (\d+) passed.*", done.stdout, re.MULTILINE | re.DOTALL)
    assert summary, done.stdout + done.stderr
    assert done.returncode == 0, summary[0]
    assert int(summary[1]) >= EXPECTED, summary[0]
