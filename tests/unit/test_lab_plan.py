from __future__ import annotations

import pytest

from gradwire_ops.lab_plan import (
    LabPlan,
    burst_bytes,
    format_rate,
    parse_delay,
    parse_rate,
    payload_share,
    queue_bytes,
    relay_bytes,
    stream_count,
)

GBIT = 10**9


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1gbit", GBIT),
        ("2500mbit", 2_500_000_000),
        ("2.5 Gbit", 2_500_000_000),
        (" 500MBIT ", 500_000_000),
        ("64000kbit", 64_000_000),
        ("1000000bit", 1_000_000),
        ("none", None),
    ],
)
def test_a_rate_is_a_number_with_a_unit_or_none(text: str, rate: int | None) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "1000", "1gb", "-1gbit", "gbit", "1e3mbit", "1 tbit"])
def test_another_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for instance 1gbit, 500mbit or none"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["0gbit", "999kbit"])
def test_a_rate_too_low_for_the_figures_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="less than 1mbit"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1gbit", "2.5gbit", "500mbit", "1mbit", "none"])
def test_a_rate_is_written_as_it_is_read(text: str) -> None:
    assert format_rate(parse_rate(text)) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("50ms", 0.05), ("200us", 0.0002), ("0.1s", 0.1), ("0", 0), ("2s", 2)]
)
def test_a_delay_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert parse_delay(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "50", "-1ms", "1m", "ms"])
def test_another_delay_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for instance 50ms, 200us or 0"):
        parse_delay(text)


def test_a_delay_that_nobody_can_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 2s"):
        parse_delay("50s")


def test_a_burst_is_two_milliseconds_and_never_less_than_two_large_packets() -> None:
    assert burst_bytes(10 * GBIT) == 2_500_000
    assert burst_bytes(GBIT) == 250_000
    assert burst_bytes(200_000_000) == 128 << 10


def test_a_queue_is_four_milliseconds_beyond_the_burst() -> None:
    assert queue_bytes(10 * GBIT) == 2_500_000 + 5_000_000
    assert queue_bytes(200_000_000) == (128 + 512) << 10


@pytest.mark.parametrize(("mtu", "share"), [(1500, 0.956), (9000, 0.993), (576, 0.888)])
def test_headers_leave_a_share_of_the_rate_for_payload(mtu: int, share: float) -> None:
    assert payload_share(mtu) == pytest.approx(share, abs=0.0005)


def test_streams_are_as_many_as_the_way_can_hold() -> None:
    assert stream_count(GBIT, 0) == 1
    assert stream_count(GBIT, 0.05) > 6_250_000 / (4 << 20)
    assert stream_count(100 * GBIT, 1.0) == 32


@pytest.mark.parametrize("rate", [GBIT, None])
def test_a_relay_has_room_for_all_that_is_on_its_way(rate: int | None) -> None:
    assert relay_bytes(rate, 0.025) > (rate or 10 * GBIT) / 8 * 0.025


def test_a_round_trip_is_four_hops() -> None:
    plan = LabPlan(2, delay_seconds=0.02)
    assert plan.hop_seconds * 4 == pytest.approx(0.02)


def test_without_rates_no_link_has_a_limit() -> None:
    assert LabPlan(3).all_rates == (None, None, None)


@pytest.mark.parametrize("nodes", [0, 251])
def test_a_plan_has_as_many_nodes_as_there_are_addresses(nodes: int) -> None:
    with pytest.raises(ValueError, match=f"expected 1 to 250 nodes, got {nodes}"):
        LabPlan(nodes)


def test_a_plan_has_a_rate_for_each_node() -> None:
    with pytest.raises(ValueError, match="2 rates for 3 nodes"):
        LabPlan(3, rates=(GBIT, GBIT))
