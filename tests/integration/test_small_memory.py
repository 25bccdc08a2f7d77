"""A folder for shared memory that is too small: fewer slots, or figures; never a bus error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.cluster import Cluster, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="only root can mount a tmpfs"
)


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "gradwire-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: what this process still maps of it must not keep it in the folder tree.
        subprocess.run(["umount", "--lazy", str(folder)], timeout=10, check=True)


@contextmanager
def daemon(folder: Path, size: str) -> Iterator[Cluster]:
    """One daemon with a folder of this size, which must be alive in the end."""
    with tmpfs(folder / "shm", size) as memory:
        with cluster(1, {"GRADWIRE_SHM_DIR": str(memory)}) as nodes:
            yield nodes
            assert nodes.daemons[0].exit_code is None
        assert list(memory.iterdir()) == []


@contextmanager
def job(address: str, ranks: int) -> Iterator[list[gradwire.Session]]:
    store = dist.HashStore()

    def one(rank: int) -> gradwire.Session:
        return gradwire.connect(store=store, rank=rank, world_size=ranks, daemon=address)

    with ExitStack() as open_sessions, ThreadPoolExecutor(ranks) as pool:
        yield [open_sessions.enter_context(each) for each in pool.map(one, range(ranks))]


def assert_reduces(sessions: list[gradwire.Session], elements: int) -> None:
    tensors = [torch.full((elements,), each.rank + 1.0) for each in sessions]
    rounds = [each.all_reduce(tensor) for each, tensor in zip(sessions, tensors, strict=True)]
    mean = (len(sessions) + 1) / 2
    for each in rounds:
        assert torch.equal(each.wait(), torch.full((elements,), mean))


def figures(error: pytest.ExceptionInfo[gradwire.ConnectError]) -> tuple[int, int]:
    """MiB needed, and MiB free."""
    needed = re.search(r"(\d+) MiB in ", str(error.value))
    free = re.search(r"(\d+) MiB are free", str(error.value))
    assert needed is not None
    assert free is not None
    return int(needed[1]), int(free[1])


def test_a_job_that_does_not_fit_gets_fewer_slots_and_the_next_one_figures(
    tmp_path: Path,
) -> None:
    with daemon(tmp_path, "20m") as nodes, job(nodes.addresses[0], 4) as sessions:
        files = [path for path in (tmp_path / "shm").iterdir() if not path.is_socket()]
        (arena,) = [path for path in files if not path.name.endswith("-keep")]
        assert arena.stat().st_size < 20 << 20
        assert {session.path for session in sessions} == {"shared_memory"}
        assert_reduces(sessions, 10 << 20)
        with pytest.raises(gradwire.ConnectError) as refused, job(nodes.addresses[0], 4):
            pass
        needed, free = figures(refused)
        assert needed > free > 0
        assert_reduces(sessions, 10 << 20)


def test_a_folder_of_one_mebibyte_is_refused_with_figures_and_remedies(tmp_path: Path) -> None:
    with daemon(tmp_path, "1m") as nodes:
        with pytest.raises(gradwire.ConnectError) as refused, job(nodes.addresses[0], 1):
            pass
        needed, free = figures(refused)
        assert needed > free
        for word in (
            str(tmp_path / "shm"),
            "--shm-size",
            "GRADWIRE_SHM_DIR",
            "GRADWIRE_SHM=off",
        ):
            assert word in str(refused.value)


def fill(folder: Path) -> None:
    """Leave not a page."""
    with (folder / "of somebody else").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(folder).f_bavail == 0


def test_a_folder_that_somebody_fills_does_not_disturb_a_job_that_runs(tmp_path: Path) -> None:
    folder = tmp_path / "shm"
    with daemon(tmp_path, "200m") as nodes:
        with job(nodes.addresses[0], 3) as sessions:
            # Not even its slots have all been used.
            assert_reduces(sessions, 3)
            fill(folder)
            assert_reduces(sessions, 30 << 20)
            with pytest.raises(gradwire.ConnectError) as refused, job(nodes.addresses[0], 1):
                pass
            assert figures(refused)[1] == 0
            assert_reduces(sessions, 30 << 20)
        (folder / "of somebody else").unlink()
        with job(nodes.addresses[0], 3) as sessions:
            assert_reduces(sessions, 1 << 20)


def test_without_shared_memory_a_small_folder_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_SHM", "off")
    with daemon(tmp_path, "1m") as nodes, job(nodes.addresses[0], 2) as sessions:
        assert {session.path for session in sessions} == {"stream"}
        assert_reduces(sessions, 3 << 20)
