"""What can be known of a process that has ended; /proc is played by a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gradwire_server import obituary
from gradwire_server.obituary import Life

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., None]

PID = 4711
EXITING = 0x4


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """process(state, flags, started, exit_code): what the kernel says of it."""
    monkeypatch.setattr(obituary, "PROC", tmp_path)
    (tmp_path / str(PID)).mkdir()

    def write(state: str = "S", flags: int = 0, started: int = 99, exit_code: int = 0) -> None:
        fields = [state, *"11111", str(flags), *"0" * 12, str(started), *"0" * 29]
        text = f"{PID} (python) (x) {' '.join(fields)} {exit_code}\n"
        (tmp_path / str(PID) / "stat").write_text(text)

    write()
    return write


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (9, "was killed by SIGKILL"),
        (0x80 | 11, "was killed by SIGSEGV"),
        (63, "was killed by signal 63"),
        (3 << 8, "ended with exit code 3 without leaving the job"),
        (0, "ended with exit code 0 without leaving the job"),
    ],
)
def test_how_a_process_ended_is_told(process: Write, exit_code: int, words: str) -> None:
    life = Life(PID)
    assert life.end() is None
    process("Z", exit_code=exit_code)
    assert life.end() == words


def test_one_that_is_about_to_end_has_its_exit_code_already(process: Write) -> None:
    life = Life(PID)
    process("R", EXITING, exit_code=9)
    assert life.end() == "was killed by SIGKILL"


def test_another_process_of_the_same_number_is_not_mistaken_for_it(process: Write) -> None:
    life = Life(PID)
    process("Z", started=100, exit_code=9)
    assert life.end() == ""


def test_who_may_not_know_the_exit_code_says_nothing(
    process: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a stranger the kernel says 0, whatever it is."""
    monkeypatch.setattr("os.geteuid", lambda: -1)
    life = Life(PID)
    process("Z", exit_code=0)
    assert life.end() == ""
    process("Z", exit_code=9)
    assert life.end() == "was killed by SIGKILL"


def test_nothing_is_said_of_one_that_could_not_be_seen(process: Write) -> None:
    process("Z", exit_code=9)
    for pid in (0, -1, PID + 1):
        assert not Life(pid).known
        assert Life(pid).end() == ""


def test_one_that_has_been_waited_for_is_gone(process: Write, tmp_path: Path) -> None:
    life = Life(PID)
    (tmp_path / str(PID) / "stat").unlink()
    assert life.end() == ""


@pytest.mark.parametrize(
    ("host", "peer", "known"),
    [
        ("here", "unix:", True),
        ("here", "ipv4:127.0.0.1:4000", True),
        ("here", "ipv6:%5B::1%5D:4000", True),
        ("there", "unix:", False),
        ("here", "ipv4:10.0.0.1:4000", False),
    ],
)
def test_a_pid_counts_only_where_it_is_of_this_host(
    process: Write, monkeypatch: pytest.MonkeyPatch, host: str, peer: str, known: bool
) -> None:
    process()
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    assert obituary.of(PID, host, peer).known is known
