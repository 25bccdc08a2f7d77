"""How much shared memory may be taken, and what is said where that is not enough."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gradwire_server import memory_folder, shared_memory
from gradwire_server.errors import StartError
from gradwire_server.memory_folder import MemoryFolder

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


class Container:
    """One whose limit is near."""

    memory_room = 3 * MIB


def test_what_was_made_there_counts_for_as_long_as_it_is_there(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path, 10 * MIB)
    os.close(folder.reserve(tmp_path / "gradwire-a", 4 * MIB))
    assert folder.room == 6 * MIB
    assert folder.limit(6 * MIB) is None
    with pytest.raises(OSError, match="No space"):
        folder.reserve(tmp_path / "gradwire-b", 6 * MIB + 1)
    assert [path.name for path in tmp_path.iterdir()] == ["gradwire-a"]
    (tmp_path / "gradwire-a").unlink()
    assert folder.room == 10 * MIB


def test_an_arena_gets_fewer_slots_and_then_none_where_others_have_the_memory(
    tmp_path: Path,
) -> None:
    folder = MemoryFolder(tmp_path, 20 * MIB)
    first = shared_memory.create((0,), 8, MIB, folder)
    second = shared_memory.create((0,), 8, MIB, folder)
    assert second.layout.slots < first.layout.slots == 8
    with pytest.raises(StartError, match=r"together may have 20 MiB: .* --max-memory"):
        shared_memory.create((0,), 8, MIB, folder)
    first.close()
    third = shared_memory.create((0,), 8, MIB, folder)
    assert third.layout.slots == 8
    second.close()
    third.close()


def test_memory_that_the_container_would_be_killed_for_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_folder, "Cgroup", Container)
    folder = MemoryFolder(tmp_path)
    with pytest.raises(StartError, match=r"container may take 3 MiB more"):
        shared_memory.create((0,), 8, 4 * MIB, folder)
    assert list(tmp_path.iterdir()) == []
