"""`make bench`: run the settings of the catalogue in turn, and write RESULTS.md.

Whatever a setting gives is kept in results.json at once, so that a run that was cut short can
be continued, or rendered as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from figures.catalogue import SETTINGS
from figures.machine import Machine, this_machine
from figures.report import Result, render
from gradwire_ops.children import exit_on_terminate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from figures.setting import Setting

HERE = Path(__file__).parent
SETTING_SECONDS = 1800
ROUNDS = 7


def main() -> int:
    """Run and render. 1 where a setting failed, 2 for wrong usage."""
    arguments = _arguments()
    folder: Path = arguments.folder
    store = folder / "results.json"
    results = _load(store) if arguments.render or arguments.resume or arguments.only else {}
    if not arguments.render:
        chosen = _chosen(arguments.only, results if arguments.resume else {})
        with exit_on_terminate():
            for number, setting in enumerate(chosen, 1):
                _say(f"[{number}/{len(chosen)}] {setting.name}: {setting.title}")
                results[setting.name] = _measure(setting, arguments)
                _save(store, results)
    page = folder / "RESULTS.md"
    page.write_text(render(results))
    _say(f"written: {page}")
    return 1 if any(result.failed for result in results.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="suite", description=__doc__)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each size")
    parser.add_argument(
        "--quick", action="store_true", help="one round, small tensors: does it work at all"
    )
    parser.add_argument(
        "--resume", action="store_true", help="run what results.json does not have yet"
    )
    parser.add_argument(
        "--render", action="store_true", help="run nothing, write RESULTS.md from results.json"
    )
    parser.add_argument(
        "--folder", type=Path, default=HERE, help="of results.json and RESULTS.md"
    )
    arguments = parser.parse_args()
    if arguments.quick and arguments.folder == HERE:
        parser.error("--quick wants a --folder: its figures are none to keep")
    return arguments


def _chosen(only: Sequence[str] | None, done: dict[str, Result]) -> list[Setting]:
    return [
        setting
        for setting in SETTINGS
        if (only is None or setting.name in only)
        and (setting.name not in done or done[setting.name].failed)
    ]


def _measure(setting: Setting, arguments: argparse.Namespace) -> Result:
    began = time.monotonic()
    command = setting.command(rounds=arguments.rounds, quick=arguments.quick)
    rows = _run(command, getattr(setting, "environment", {}))
    _say(f"    {'failed' if rows is None else 'done'} in {time.monotonic() - began:.0f} s")
    return Result(
        rows or (),
        datetime.now(UTC).date().isoformat(),
        this_machine(),
        arguments.quick,
        failed=rows is None,
    )


def _run(command: Sequence[str], settings: dict[str, str]) -> list[dict[str, object]] | None:
    """The rows it prints; None where it failed. It ends when this process does."""
    tied = ("-P", "-m", "gradwire_ops.leash", str(os.getpid()))
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")
    }
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**inherited, **settings, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        result = subprocess.run(
            [sys.executable, *tied, *command],
            env=environment,
            stdout=subprocess.PIPE,
            timeout=SETTING_SECONDS,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        _say(f"    {error}")
        return None
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


def _load(store: Path) -> dict[str, Result]:
    if not store.exists():
        return {}
    return {
        name: Result(**{**fields, "machine": Machine(**fields["machine"])})
        for name, fields in json.loads(store.read_text()).items()
    }


def _save(store: Path, results: dict[str, Result]) -> None:
    """Whole or not at all: this may be ended at any time."""
    text = json.dumps({name: asdict(result) for name, result in results.items()}, indent=1)
    fresh = store.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(store)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
