"""`make conformance`: torch's own distributed tests, on grpc and on gloo, and what they say.

    python tests/conformance/run.py                             both, all tests
    python tests/conformance/run.py --backend grpc -k barrier   some, on one

Exits with 1 if a test fails on grpc that passes on gloo and is not among REFUSED_BY_TORCH.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from gradwire_ops.cluster import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

SUITE = Path(__file__).with_name("suite.py")
TEST_SECONDS = 120

REFUSED_BY_TORCH = {"test_monitored_barrier_gloo", "test_monitored_barrier_gloo_subgroup"}
"""torch.distributed.monitored_barrier itself refuses a backend that is not called gloo."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests ended, by name."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]
    seconds: float

    def __str__(self) -> str:
        text = f"{len(self.passed)} passed, {len(self.failed)} failed"
        return f"{text}, {len(self.skipped)} skipped by torch in {self.seconds:.0f} s"


def run(backend: str, selection: str = "") -> Outcome:
    """Run the tests of which the selection, an expression of pytest's, says yes."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder, cluster(1) as nodes:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", str(SUITE), "-q", "--no-header"]
        command += ["-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=default"]
        command += ["-o", f"timeout={TEST_SECONDS}", "-o", "faulthandler_timeout=0"]
        command += ["--tb=short", f"--junitxml={report}", "-k", selection]
        environment = {
            **os.environ,
            "BACKEND": backend,
            "TEMP_DIR": folder,
            "GRADWIRE_DAEMON": nodes.addresses[0],
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("INIT_METHOD", None)
        subprocess.run(command, env=environment, check=False)
        return _read(report)


def _read(report: Path) -> Outcome:
    ended: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    seconds = 0.0
    for name, result, took in _cases(report):
        ended[result].add(name)
        seconds += took
    return Outcome(
        frozenset(ended["passed"]),
        frozenset(ended["failed"]),
        frozenset(ended["skipped"]),
        seconds,
    )


def _cases(report: Path) -> Iterator[tuple[str, str, float]]:
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "passed"
        result = "skipped" if "skipped" in kinds else result
        yield case.get("name", ""), result, float(case.get("time", 0))


def main() -> int:
    """Run, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["grpc", "gloo"])
    parser.add_argument("-k", dest="selection", default="", help="which tests, as in pytest")
    arguments = parser.parse_args()
    backends = [arguments.backend] if arguments.backend else ["gloo", "grpc"]
    outcomes = {backend: run(backend, arguments.selection) for backend in backends}
    for backend, outcome in outcomes.items():
        print(f"{backend}: {outcome}")
        for name in sorted(outcome.failed):
            print(f"    failed: {name}")
    ours = outcomes.get("grpc")
    if ours is None:
        return 0
    known = REFUSED_BY_TORCH | (outcomes["gloo"].failed if "gloo" in outcomes else set())
    return int(bool(ours.failed - known))


if __name__ == "__main__":
    sys.exit(main())
