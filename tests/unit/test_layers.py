"""Imports point down only: ARCHITECTURE.md has the picture, this holds it true."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OURS = {"gradwire", "gradwire_server", "gradwire_proto", "gradwire_ops"}
MAY_IMPORT = {
    "client/gradwire": {"gradwire", "gradwire_proto"},
    "server/gradwire_server": {"gradwire_server", "gradwire_proto"},
    "proto/gradwire_proto": {"gradwire_proto"},
    "deploy/gradwire_ops": OURS,
}

SERVER = ROOT / "server" / "gradwire_server"
PURE = [
    *(SERVER / f"{name}.py" for name in ("group", "ledger", "office", "round", "straggling")),
    *sorted(SERVER.glob("reduce/*.py")),
]
PURE_LINKS = [
    SERVER / "transport" / f"{name}.py"
    for name in ("assembly", "base", "clocks", "journal", "stripes")
]
PURE_SERVER_MODULES = ("group", "ledger", "round", "reduce", "errors")
CLIENT = ROOT / "client" / "gradwire"
PURE_CLIENT = [CLIENT / f"_{name}.py" for name in ("inbox", "letters", "outbox")]
# Anything that waits, looks at the world, or crunches.
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "threading", "uvloop"),
    *("datetime", "random", "secrets", "time"),
    *("http", "io", "mmap", "os", "pathlib", "select", "selectors", "signal", "socket", "ssl"),
    *("shutil", "subprocess", "tempfile"),
    *("grpc", "logging", "numpy", "prometheus_client", "psutil", "torch"),
}
WORLDLY = {"asyncio", "grpc", "select", "socket", "ssl", "subprocess", "threading", "time"}


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of every module or member that a file imports, anywhere in it.

    Relative imports, which ruff refuses, would be missed.
    """
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "v1"]


def offences(paths: list[Path], forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports(path)
        if name.split(".")[0] in forbidden
    ]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_package_imports_only_the_packages_below_it(folder: str) -> None:
    assert offences(modules(ROOT / folder), OURS - MAY_IMPORT[folder]) == []


def test_the_pure_core_imports_no_io_clock_thread_or_tensor() -> None:
    assert offences(PURE + PURE_LINKS + PURE_CLIENT, IMPURE) == []


def test_the_pure_core_imports_nothing_of_the_server_but_itself() -> None:
    outside = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in PURE
        if path.exists()
        for name in imports(path)
        if name.startswith("gradwire_server.") and name.split(".")[1] not in PURE_SERVER_MODULES
    ]
    assert outside == []


def test_what_both_sides_agree_on_does_no_io() -> None:
    folder = ROOT / "proto" / "gradwire_proto"
    certificates = folder / "certificates.py"
    others = [path for path in modules(folder) if path != certificates]
    assert offences(others, WORLDLY) == []
    # Its handshakes are in memory; a connection is shaken by whoever made it.
    assert offences([certificates], WORLDLY - {"ssl"}) == []


UNPACKING = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


@pytest.mark.case("S02")
def test_nothing_received_can_be_run() -> None:
    """No module of ours has a way to make code, or objects of any class, out of bytes."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in MAY_IMPORT
        for path in modules(ROOT / folder)
        for name in (*imports(path), *_calls(path))
        if name.partition(".")[0] in UNPACKING or name in {"eval", "exec", "torch.load"}
    ]
    assert found == []


def _calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
