from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import pytest
from torch.distributed import HashStore

from gradwire import _process_group


def test_a_group_that_can_not_be_made_takes_no_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    seats: list[Any] = []

    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("no placeholder")

    monkeypatch.setattr(_process_group, "Routes", refuse)
    monkeypatch.setattr(_process_group, "connect", lambda **wishes: seats.append(wishes))
    with pytest.raises(RuntimeError, match="no placeholder"):
        _process_group.ProcessGroup(HashStore(), 0, 1, timedelta(seconds=1))
    assert seats == []
