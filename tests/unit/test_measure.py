"""How fast a link is, told by what comes over it; in a time of its own."""

from __future__ import annotations

import pytest

from gradwire_server.transport.measure import Bandwidth, Rate

FRAME = 1 << 17
SHARE = 1 << 22


def test_a_steady_rate_is_read_as_it_is_and_is_forgotten_when_nothing_comes() -> None:
    rate = Rate(100.0)
    for tick in range(1000):
        rate.add(10_000, 100.0 + tick / 100)
    assert rate.read(110.0) == pytest.approx(1_000_000, rel=0.05)
    assert rate.read(120.0) < 10_000


def test_what_a_link_has_just_begun_with_is_no_huge_rate() -> None:
    rate = Rate(5.0)
    rate.add(1000, 5.0)
    assert rate.read(5.0) <= 4500


class Wire:
    """Shares that come one behind the other at a rate."""

    def __init__(self) -> None:
        self.bandwidth, self.now, self.total = Bandwidth(), 50.0, 0

    def carry(self, shares: int, per_second: float, *, trip: float = 0.0) -> None:
        """All handed over at once: each waits for those before it."""
        left = self.now - trip / 2
        for _ in range(shares):
            for _ in range(SHARE // FRAME):
                self.now += FRAME / per_second
                self.total += FRAME
                self.bandwidth.received(self.total, self.now)
            self.bandwidth.arrived(left, self.now, trip)

    def read(self) -> float:
        assert self.bandwidth.per_second is not None
        return self.bandwidth.per_second


@pytest.mark.parametrize("per_second", [1e6, 1e8, 1e9])
@pytest.mark.parametrize("shares", [1, 8])
def test_it_is_what_comes_while_a_share_is_on_its_way(per_second: float, shares: int) -> None:
    wire = Wire()
    wire.carry(3, per_second)
    wire.now += 10.0
    wire.carry(shares, per_second, trip=0.1)
    assert wire.read() == pytest.approx(per_second, rel=0.15)


@pytest.mark.parametrize("early", [0.02, 0.5, 0.98])
def test_a_share_that_leaves_while_another_comes_is_not_taken_for_both(early: float) -> None:
    """Each is one frame, as most are, and leaves when this part of the other is yet to come."""
    bandwidth, per_second, now = Bandwidth(), 1e8, 50.0
    seconds = SHARE / per_second
    for number in range(1, 40):
        left = now - early * seconds * (number % 4 != 1)
        now += seconds
        bandwidth.received(number * SHARE, now)
        bandwidth.arrived(left, now, 0.0)
        assert bandwidth.per_second == pytest.approx(per_second, rel=0.01)


def test_it_goes_up_at_once_and_down_slowly_and_not_at_all_while_nothing_comes() -> None:
    wire = Wire()
    wire.carry(2, 1e7)
    wire.carry(4, 1e8)
    assert wire.read() == pytest.approx(1e8, rel=0.15)
    wire.carry(1, 1e7)
    assert wire.read() > 7e7, "one share may have waited for a busy sender"
    wire.carry(100, 1e7)
    assert wire.read() == pytest.approx(1e7, rel=0.15)
    wire.now += 1000.0
    assert wire.read() == pytest.approx(1e7, rel=0.15)


def test_what_it_usually_is_stays_when_it_becomes_slow() -> None:
    wire = Wire()
    assert wire.bandwidth.usual is None
    wire.carry(1, 1e8)
    assert wire.bandwidth.usual == wire.read()
    wire.carry(2000, 1e8)
    wire.now += 1000.0
    wire.carry(20, 1e6)
    usual = wire.bandwidth.usual
    assert usual is not None
    assert wire.read() < 5e6
    assert 4e7 < usual < 1e8


def test_what_was_too_quick_for_the_clocks_says_nothing() -> None:
    wire = Wire()
    wire.bandwidth.arrived(50.0, 51.0, 0.0)
    wire.bandwidth.received(SHARE, 50.0)
    wire.bandwidth.arrived(50.0, 50.0001, 0.0)
    wire.bandwidth.arrived(51.0, 50.0, 0.0)
    assert wire.bandwidth.per_second is None
