"""`make drill`: every fault, as often as it takes to believe it; writes FAILURES.md.

What each fault gives is kept in failures.json at once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire_ops.children import exit_on_terminate
from keeping import DRILLS, load, made_now, save, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from figures.setting import Row

HERE = Path(__file__).parent
TIMES = {
    "kill-daemon": 100,
    "reset-link": 100,
    "partition": 50,
    "stop-daemon": 50,
    "kill-rank": 100,
    "slow-link": 20,
    "corrupt-chunk": 50,
}
MOST_SECONDS = 7200
QUICK = ("--steps", "20", "--size", "1MiB", "--seconds", "0.3,0.6")


def main() -> int:
    """Run and render. 1 where a verdict was not the expected one, 2 for wrong usage."""
    arguments = _arguments()
    store = arguments.folder / DRILLS
    results = load(store)
    chosen = [] if arguments.render else arguments.only or list(TIMES)
    unexpected = False
    with exit_on_terminate():
        for fault in chosen:
            times = 1 if arguments.quick else TIMES[fault]
            flags = ["--repeat", str(times), "--seed", str(arguments.seed)]
            rows, code = _drill([fault, *flags, *(QUICK if arguments.quick else ())])
            failed = len(rows) < times
            results[fault] = made_now(rows, quick=arguments.quick, failed=failed)
            save(store, results)
            unexpected |= bool(code)
    print(f"written: {write_page(arguments.folder)}", file=sys.stderr)
    return 1 if unexpected else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="failures", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(TIMES))
    parser.add_argument("--seed", type=int, default=0, help="of moments and tensors")
    parser.add_argument("--quick", action="store_true", help="each once: does it work at all")
    parser.add_argument("--render", action="store_true", help="only write the page again")
    parser.add_argument("--folder", type=Path, default=HERE, help="of what is written")
    arguments = parser.parse_args()
    if arguments.quick and arguments.folder == HERE:
        parser.error("--quick wants a --folder: its figures are none to keep")
    return arguments


def _drill(flags: Sequence[str]) -> tuple[list[Row], int]:
    """What it found, and its exit code. It ends when this process does."""
    tied = ("-P", "-m", "gradwire_ops.leash", str(os.getpid()))
    command = [sys.executable, *tied, "gradwire_ops", "drill", *flags, "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate()
    print(f"{flags[0]}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    rows: list[Row] = json.loads(output) if output.strip() else []
    return rows, process.returncode


if __name__ == "__main__":
    sys.exit(main())
