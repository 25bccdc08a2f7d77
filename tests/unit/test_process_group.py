from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NoReturn

import pytest
import torch
from torch.distributed import HashStore

from gradwire import _process_group, _routes


def test_a_group_that_can_not_be_made_takes_no_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    seats: list[Any] = []

    def refuse(*_: object) -> NoReturn:
        raise RuntimeError("no placeholder")

    monkeypatch.setattr(_process_group, "Routes", refuse)
    monkeypatch.setattr(_process_group, "connect", lambda **wishes: seats.append(wishes))
    with pytest.raises(RuntimeError, match="no placeholder"):
        _process_group.ProcessGroup(HashStore(), 0, 1, timedelta(seconds=1))
    assert seats == []


def test_the_other_backends_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Slow:
        def __init__(self, *_: object) -> None:
            time.sleep(0.05)
            made.append(self)

        def rank(self) -> int:
            return 0

        size = rank

    group: Any = Slow()
    monkeypatch.setattr(_routes, "ProcessGroup", Slow)
    monkeypatch.setattr(_routes.Routes, "names", lambda _: {"cpu": "grpc", "meta": "other"})
    monkeypatch.setattr(_routes.Routes, "_add", lambda *_: None)
    monkeypatch.setattr(_routes, "_placeholder", lambda *_: None)
    routes = _routes.Routes(group, HashStore(), timedelta(seconds=1))
    with ThreadPoolExecutor(4) as threads:
        others = list(threads.map(routes.other, [torch.device("meta")] * 4))
    assert len(made) == 2, "this one and the other"
    assert {id(other) for other in others} == {id(made[1])}
