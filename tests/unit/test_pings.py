"""Who asks over gRPC whether the other is there, and how often the other allows it."""

from __future__ import annotations

import pytest

from gradwire import _channel
from gradwire_server import daemon
from gradwire_server.transport import dialling as transport


@pytest.mark.case("R12")
def test_nobody_asks_more_often_than_daemons_allow() -> None:
    allowed = dict(daemon.OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert not [name for name, _ in _channel.OPTIONS if "keepalive" in name]
    assert dict(transport.OPTIONS)["grpc.keepalive_time_ms"] >= 2 * allowed
