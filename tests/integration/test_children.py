from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gradwire_ops.children import Child, ChildError, read_all, stop

PROGRAMS = {
    "talker": "print('one', flush=True); print('two')",
    "failer": "import sys; print('so far'); sys.exit('out of luck')",
    "sleeper": "import time; print('here', flush=True); time.sleep(60)",
    "stubborn": """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("here", flush=True)
        time.sleep(60)
    """,
    "parent": """
        import os, sys, time
        from pathlib import Path
        from gradwire_ops.children import Child, read_all
        child = Child("child", ["sleeper"], os.environ, Path("child.log"), piped=True)
        next(read_all([child], [], 20))
        print(child.pid, flush=True)
        time.sleep(60)
    """,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, source in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    paths = [str(tmp_path), *map(os.path.abspath, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return tmp_path


def start(folder: Path, program: str) -> Child:
    return Child(program, [program], os.environ, folder / f"{program}.log", piped=True)


def test_lines_come_as_they_are_printed_until_all_have_ended(folder: Path) -> None:
    talker = start(folder, "talker")
    try:
        assert [line for _, line in read_all([talker], [], 20)] == ["one", "two"]
    finally:
        stop([talker])


def test_a_failure_is_raised_at_once_with_the_last_words(folder: Path) -> None:
    children = [start(folder, "sleeper"), start(folder, "failer")]
    try:
        with pytest.raises(
            ChildError, match=r"failer ended with exit code 1(.|\n)*out of luck"
        ):
            list(read_all(children, [], 20))
    finally:
        stop(children)
    assert children[0].exit_code == -signal.SIGTERM


def test_a_watched_child_must_not_end_not_even_well(folder: Path) -> None:
    children = [start(folder, "sleeper"), start(folder, "talker")]
    try:
        with pytest.raises(ChildError, match="talker ended with exit code 0"):
            list(read_all(children[:1], children[1:], 20))
    finally:
        stop(children)


def test_time_runs_out_and_the_text_says_for_whom(folder: Path) -> None:
    sleeper = start(folder, "sleeper")
    try:
        with pytest.raises(ChildError, match="time is up, and these still run: sleeper"):
            list(read_all([sleeper], [], 0.2))
    finally:
        stop([sleeper])


def test_who_ignores_sigterm_is_killed_and_named(folder: Path) -> None:
    stubborn = start(folder, "stubborn")
    next(read_all([stubborn], [], 20))
    assert stop([stubborn], seconds=0.2) == ["stubborn"]
    assert stubborn.exit_code == -signal.SIGKILL


def test_a_killed_parent_takes_its_children_along(folder: Path) -> None:
    command = [sys.executable, "-m", "parent"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and not is_zombie(child):
        assert time.monotonic() < deadline, "the child outlived its parent"
        os.sched_yield()


def is_zombie(pid: int) -> bool:
    """Dead, but whoever inherited it has not looked yet."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
