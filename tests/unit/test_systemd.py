"""The unit for systemd: as it is read, and true to the code. It was never started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gradwire_server.settings import load
from gradwire_server.workers import STOP_SECONDS

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = SYSTEMD / "gradwire.service"

EXPOSURE = 25
"""Tenths of what `systemd-analyze security` counts: 100 is a service without any sandbox."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not on this machine"
)


def lines(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def analyze(*arguments: str | Path) -> None:
    said = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60
    )
    assert said.returncode == 0, said.stdout + said.stderr
    # Settings that it does not know are only warned of.
    assert UNIT.name not in said.stderr, said.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """With a command that is on this machine: systemd looks for it."""
    (command,) = lines("ExecStart")
    path = tmp_path / UNIT.name
    path.write_text(
        UNIT.read_text().replace(command, f"{sys.executable} -m gradwire_ops serve")
    )
    return path


@needs_systemd
def test_systemd_understands_every_line(unit: Path) -> None:
    analyze("verify", unit)


@needs_systemd
def test_a_line_that_it_does_not_know_is_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectHome=", "ProtectHouse="))
    with pytest.raises(AssertionError, match="ProtectHouse"):
        analyze("verify", unit)


@needs_systemd
def test_the_service_can_do_little(unit: Path) -> None:
    analyze("security", "--offline=yes", f"--threshold={EXPOSURE}", unit)


def test_the_daemon_takes_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
        monkeypatch.delenv(name)
    variables = dict(each.split("=", 1) for each in lines("Environment"))
    commented = re.findall(r"^#\s+(GRADWIRE_\w+)=(\S+)$", UNIT.read_text(), re.MULTILINE)
    for name, value in {**variables, **dict(commented)}.items():
        monkeypatch.setenv(name, value)
    settings = load({"shm_dir": tmp_path})
    assert [f"/run/{each}" for each in lines("RuntimeDirectory")] == [
        str(settings.socket.parent)
    ]
    assert (settings.listen, str(settings.certs)) == ("0.0.0.0:50700", "/etc/gradwire/certs")
    made = (SYSTEMD / "gradwire.tmpfiles").read_text()
    assert f"d {variables['GRADWIRE_SHM_DIR']} 2770 " in made


def test_the_service_manager_is_more_patient_than_the_daemon() -> None:
    (patience,) = map(float, lines("TimeoutStopSec"))
    assert patience > STOP_SECONDS
    manifest = ROOT / "deploy" / "kubernetes" / "overlays" / "daemonset" / "daemonset.yaml"
    _, daemons = yaml.safe_load_all(manifest.read_text())
    assert daemons["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > STOP_SECONDS
    # Jobs wait for 30 s, unless told otherwise.
    (pause,) = map(float, lines("RestartSec"))
    assert pause < 5


def test_user_and_group_are_those_of_the_image() -> None:
    made = (SYSTEMD / "gradwire.sysusers").read_text()
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    match = re.search(r"^u (\w+) (\d+) ", made, re.MULTILINE)
    assert match is not None
    assert [*lines("User"), *lines("Group")] == [match[1], match[1]]
    assert f"--uid {match[2]}" in dockerfile
    assert f"--gid {match[2]}" in dockerfile
