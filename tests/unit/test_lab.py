from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabError, LabPlan

if TYPE_CHECKING:
    from pathlib import Path


def test_without_its_tools_there_is_no_laboratory_and_the_text_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(
            LabError, match=r"ip, tc, nsenter, .*apt-get install iproute2 util-linux"
        ),
        lab(LabPlan(2)),
    ):
        pass
