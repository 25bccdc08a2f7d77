"""Where a daemon's further workers listen."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire_server.settings import load
from gradwire_server.workers import settings_of


@pytest.mark.parametrize(
    ("listen", "advertise", "expected", "told"),
    [
        ("127.0.0.1:50700", "", "127.0.0.1:50702", ""),
        ("127.0.0.1:0", "", "127.0.0.1:0", ""),
        ("[::1]:50700,127.0.0.1:7", "", "[::1]:50702,127.0.0.1:9", ""),
        ("127.0.0.1:50700", "gpu-1,gpu-2:9000", "127.0.0.1:50702", "gpu-1,gpu-2:9002"),
    ],
)
def test_a_worker_listens_so_many_ports_on(
    listen: str, advertise: str, expected: str, told: str
) -> None:
    first = load(
        {"listen": listen, "advertise": advertise, "workers": 3, "socket": "/run/g.sock"}
    )
    worker = settings_of(first, 2)
    assert (worker.listen, worker.advertise) == (expected, told)
    assert worker.socket == Path("/run/g.sock.2")
    assert worker.workers == 1


def test_a_worker_s_metrics_are_its_first_s_to_ask_for() -> None:
    assert settings_of(load({"workers": 2}), 1).metrics_listen == "127.0.0.1:0"
    off = load({"workers": 2, "metrics_listen": ""})
    assert settings_of(off, 1).metrics_listen == ""
