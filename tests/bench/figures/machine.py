"""What a measurement was made on, and with."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_MODEL = re.compile(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", re.MULTILINE)
_MEMORY = re.compile(r"^MemTotal:\s*(\d+) kB$", re.MULTILINE)

_OWN_PAGES = (
    ":(top,exclude)tests/bench/RESULTS.md",
    ":(top,exclude)tests/bench/CONVERGENCE*",
    ":(top,exclude)tests/bench/FAILURES.md",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """One host and its software."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    torch: str
    grpcio: str
    gradwire: str
    """Version and commit."""


def cpu_model(cpuinfo: str) -> str:
    """From the text of /proc/cpuinfo; not every kernel and CPU tells one."""
    found = _MODEL.search(cpuinfo)
    return " ".join(found[1].split()) if found else f"unnamed {platform.machine()}"


def memory_gibibytes(meminfo: str) -> float:
    """From the text of /proc/meminfo. Raises ValueError where it does not say."""
    found = _MEMORY.search(meminfo)
    if found is None:
        raise ValueError("expected a line MemTotal in /proc/meminfo")
    return int(found[1]) / (1 << 20)


def this_machine() -> Machine:
    """The one that this runs on; of its cores those that may be used."""
    return Machine(
        cpu=cpu_model(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory_gibibytes(Path("/proc/meminfo").read_text()), 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=metadata.version("torch"),
        grpcio=metadata.version("grpcio"),
        gradwire=f"{metadata.version('gradwire')} at {commit()}",
    )


def commit() -> str:
    """The commit that is checked out, and whether other files than our pages differ from it."""
    found = _git("rev-parse", "--short=12", "HEAD")
    if not found:
        return "an unknown commit"
    return (
        f"{found} with changes"
        if _git("status", "--porcelain", "--", ":/", *_OWN_PAGES)
        else found
    )


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
