"""The wheel: what is in it, and that it works where nothing else of the repository is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradwire_server.page import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PACKAGES = {"gradwire", "gradwire_server", "gradwire_proto", "gradwire_ops"}

pytestmark = pytest.mark.timeout(300)

ALL_REDUCE = """
import gradwire, torch
with gradwire.connect() as session:
    print(session.daemon, session.all_reduce(torch.ones(3) * 7).wait().tolist())
    print(gradwire.__file__)
"""


def run(*command: str | Path, folder: Path, **settings: str) -> str:
    """Standard output of a command that knows nothing of this repository."""
    ours = ("GRADWIRE_", "PYTHON", "VIRTUAL_ENV")
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    result = subprocess.run(
        command,
        cwd=folder,
        env={**inherited, **settings},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make dist` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0"]
    probe = subprocess.run(
        [*fetch, "--dest", str(folder / "probe"), "hatchling"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    if probe.returncode:
        pytest.skip("pip can reach no index, so nothing can be built or installed")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a new virtual environment that has the wheel, and what it asks for."""
    folder = tmp_path_factory.mktemp("clean")
    environment = folder / "venv"
    # Some 900 MB: not kept for the last three runs, as pytest keeps its folders.
    try:
        run(sys.executable, "-m", "venv", environment, folder=folder)
        python = environment / "bin" / "python"
        index = os.environ.get("TORCH_INDEX", "").strip()
        more = ["--extra-index-url", index] if index else []
        pip = ("-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS)
        run(python, *pip, *more, wheel, folder=folder)
        yield environment / "bin"
    finally:
        shutil.rmtree(environment, ignore_errors=True)


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    version = metadata.version("gradwire")
    assert {name.split("/")[0] for name in names} == {
        *PACKAGES,
        "gradwire_backend.py",
        f"gradwire-{version}.dist-info",
    }
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert "gradwire_proto/v1/aggregator_pb2.py" in names
    assert "gradwire_ops/relay.c" in names
    for file in ("index.html", "style.css", *SCRIPTS):
        assert f"gradwire_server/page/{file}" in names
    assert [name for name in names if "test_" in name or name.endswith(".pyc")] == []


@contextmanager
def served(gradwire: Path, folder: Path) -> Iterator[str]:
    """The address of a daemon started by the installed command."""
    path = folder / "gradwire.sock"
    log = folder / "daemon.log"
    listen = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    command: list[str | Path] = [gradwire, "serve", *listen, "--socket", path]
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, cwd=folder, stderr=stderr) as daemon,
    ):
        try:
            yield f"unix:{path}"
            assert daemon.poll() is None, log.read_text()
        finally:
            daemon.terminate()
            assert daemon.wait(10) == 0
    assert "ready: " in log.read_text()


def test_the_installed_wheel_works_in_an_empty_folder(bin_folder: Path, tmp_path: Path) -> None:
    gradwire = bin_folder / "gradwire"
    empty = tmp_path / "empty"
    empty.mkdir()
    version = run(gradwire, "--version", folder=empty)
    assert version == f"gradwire {metadata.version('gradwire')}\n"
    job = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with served(gradwire, tmp_path) as address:
        output = run(
            bin_folder / "python",
            "-c",
            ALL_REDUCE,
            folder=empty,
            GRADWIRE_DAEMON=address,
            **job,
        )
    result, origin = output.splitlines()
    assert result == f"{address} [7.0, 7.0, 7.0]"
    assert origin.startswith(str(bin_folder.parent))
    output = run(
        bin_folder / "python", "-c", ALL_REDUCE, folder=empty, GRADWIRE_NODE="own", **job
    )
    assert "[7.0, 7.0, 7.0]" in output
    assert list(empty.iterdir()) == []


@pytest.mark.skipif(
    os.geteuid() != 0 or None in map(shutil.which, ("ip", "tc", "nsenter", "cc")),
    reason="a network laboratory needs root, iproute2, nsenter and a C compiler",
)
def test_the_installed_wheel_builds_a_laboratory(bin_folder: Path, tmp_path: Path) -> None:
    layout = ("--nodes", "2", "--ranks-per-node", "1", "--delay", "5ms", "--rate", "1gbit")
    bench = ("bench", "--lab", *layout, "--sizes", "4KiB", "--repeat", "1", "--json")
    (row,) = json.loads(run(bin_folder / "gradwire", *bench, folder=tmp_path))
    assert row["delay_seconds"] == 0.005
    # A single call may find the other node's message there already; on average none can.
    assert row["seconds"] > 0.002
