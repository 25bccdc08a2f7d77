"""Stories of failures, as scripts: what is done, and what the core of the daemon makes of it.

GRADWIRE_TEST_REWRITE=1 writes what really comes of every command into the scripts; read the
difference before you keep it.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

from scenes.groups import Groups
from scenes.jobs import Jobs
from scenes.journals import Journals
from scenes.ledgers import Ledgers
from scenes.reducers import Reducers
from scenes.rounds import RoundsOfANode
from scenes.script import play, scene_of
from scenes.shares import Shares

SCENES = (Reducers, RoundsOfANode, Groups, Journals, Shares, Ledgers, Jobs)
SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
FEWEST = 12
"""An empty folder would pass."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_goes_as_the_script_says(path: Path) -> None:
    script = path.read_text()
    played = play(script, SCENES)
    if os.environ.get("GRADWIRE_TEST_REWRITE"):
        path.write_text(played)
        return
    difference = difflib.unified_diff(
        script.splitlines(), played.splitlines(), "the script", "what happened", lineterm=""
    )
    if text := "\n".join(difference):
        pytest.fail(f"{path.name}:\n{text}", pytrace=False)


def test_every_scene_has_a_script() -> None:
    assert len(SCRIPTS) >= FEWEST
    assert {scene_of(path.read_text(), SCENES) for path in SCRIPTS} == set(SCENES)
