"""What a container allows, of either version of cgroups, as the kernel's files say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gradwire_server.cgroup import NO_LIMIT, Cgroup

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def cgroup(tmp_path: Path, own: str) -> Cgroup:
    (tmp_path / "own").write_text(own)
    return Cgroup(tmp_path / "root", tmp_path / "own")


def test_without_one_nothing_is_limited(tmp_path: Path) -> None:
    none = Cgroup(tmp_path / "root", tmp_path / "own")
    assert (none.memory_room, none.processors) == (None, None)


def test_the_narrowest_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = tmp_path / "root"
    written(
        root / "a", {"memory.max": "1000", "memory.current": "900", "cpu.max": "max 100000"}
    )
    written(
        root / "a" / "b",
        {
            "memory.max": "800",
            "memory.current": "600",
            "memory.stat": "anon 500\ninactive_file 100",
            "cpu.max": "150000 100000",
        },
    )
    found = cgroup(tmp_path, "0::/a/b\n")
    assert found.memory_room == 100
    written(root / "a", {"memory.max": "max"})
    assert found.memory_room == 800 - 600 + 100
    assert found.processors == 1.5


@pytest.mark.parametrize("path", ["/docker/0123", "/"])
def test_version_1_as_a_container_sees_it(tmp_path: Path, path: str) -> None:
    """Its own group is the topmost, whatever the path."""
    root = tmp_path / "root"
    written(
        root / "memory",
        {
            "memory.limit_in_bytes": "5000",
            "memory.usage_in_bytes": "3000",
            "memory.stat": "inactive_file 0\ntotal_inactive_file 500",
        },
    )
    written(root / "cpu", {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"})
    found = cgroup(tmp_path, f"4:memory:{path}\n2:cpu,cpuacct:{path}\n0::/\n")
    assert (found.memory_room, found.processors) == (2500, 2.5)


def test_version_1_without_limits(tmp_path: Path) -> None:
    root = tmp_path / "root"
    written(
        root / "memory",
        {"memory.limit_in_bytes": str(NO_LIMIT * 4), "memory.usage_in_bytes": "3000"},
    )
    written(root / "cpu", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    found = cgroup(tmp_path, "4:memory:/\n2:cpu,cpuacct:/\n")
    assert (found.memory_room, found.processors) == (None, None)
