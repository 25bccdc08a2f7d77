from __future__ import annotations

import pytest

from gradwire_ops.bench_network import NO_NETWORK, Network, limit_seconds
from gradwire_ops.lab_plan import LabPlan

SIZE = 1_000_000
RATE = 100e6


def network(*rates: int | None, payload: float | None = None, interfaces: int = 1) -> Network:
    return Network(LabPlan(len(rates), rates, interfaces=interfaces), payload)


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_between_equals_the_limit_is_that_of_a_ring(nodes: int) -> None:
    ring = 2 * (nodes - 1) / nodes * SIZE / RATE
    assert limit_seconds(SIZE, [RATE] * nodes) == pytest.approx(ring)


def test_a_slow_node_has_to_send_and_receive_the_tensor_once() -> None:
    assert limit_seconds(SIZE, [RATE, RATE, RATE, RATE / 10]) == pytest.approx(SIZE / RATE * 10)


def test_a_node_that_is_a_little_slower_completes_a_smaller_share() -> None:
    rates = [RATE, RATE, RATE, 0.8 * RATE]
    limit = limit_seconds(SIZE, rates) or 0
    assert limit == pytest.approx(2 * 3 * SIZE / sum(rates))
    # The shares that reach it: each node moves (1 + (M - 2) x) S within the limit.
    shares = [(limit * rate / SIZE - 1) / 2 for rate in rates]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0


def test_nodes_without_a_limit_leave_that_of_the_slowest_other() -> None:
    assert limit_seconds(SIZE, [None, RATE, None]) == pytest.approx(SIZE / RATE)
    assert limit_seconds(SIZE, [None, None]) is None


def test_the_payload_that_was_measured_counts_for_links_of_other_rates_in_proportion() -> None:
    found = network(8_000_000, 16_000_000, payload=900_000)
    assert found.limit_seconds(SIZE) == pytest.approx(SIZE / 900_000)
    found = network(8_000_000, 8_000_000, 16_000_000, payload=900_000)
    assert found.limit_seconds(SIZE) == pytest.approx(4 * SIZE / (4 * 900_000))


def test_two_interfaces_carry_twice_as_much() -> None:
    one, two = (
        network(8_000_000, 8_000_000, payload=900_000, interfaces=number).limit_seconds(SIZE)
        for number in (1, 2)
    )
    assert one is not None
    assert two == pytest.approx(one / 2)


def test_links_without_a_rate_have_no_limit() -> None:
    assert network(None, None).limit_seconds(SIZE) is None


def test_a_rate_is_a_number_where_all_are_equal() -> None:
    assert network(8_000_000, 8_000_000).rate_bits_per_second == 8_000_000
    assert network(8_000_000, None).rate_bits_per_second == [8_000_000, None]
    assert network(None, None).rate_bits_per_second is None


@pytest.mark.parametrize(("share", "doubt"), [(0.90, "less than"), (0.98, "more than")])
def test_a_payload_rate_that_cannot_be_right_is_doubted(share: float, doubt: str) -> None:
    found = network(8_000_000, 8_000_000, payload=share * 1_000_000)
    assert doubt in (found.doubts() or "")


def test_the_payload_rate_that_headers_leave_is_believed() -> None:
    assert network(8_000_000, 8_000_000, payload=956_000).doubts() is None
    assert network(None, None).doubts() is None


def test_the_keys_are_the_same_in_a_laboratory_and_outside() -> None:
    assert network(None, None).to_dict().keys() == NO_NETWORK.keys()
