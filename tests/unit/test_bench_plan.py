from __future__ import annotations

import pytest

from gradwire_ops.bench_plan import Plan, PlanError, PlanFlags, cores_of, make_plan
from gradwire_ops.lab_plan import LabPlan


def test_the_default_plan_goes_from_4_kib_to_64_mib() -> None:
    plan = make_plan(PlanFlags())
    assert (plan.sizes[0], plan.sizes[-1]) == (4096, 64 << 20)
    assert plan.repeat % 2 == 1, "a median that was measured"


def test_every_wrong_flag_is_listed() -> None:
    flags = PlanFlags(
        sizes="64KiB,big,0",
        nodes="0",
        ranks_per_node="two",
        repeat="-1",
        dtype="float31",
        op="xor",
        schedule="star",
        daemon_cores="all",
    )
    with pytest.raises(PlanError) as caught:
        make_plan(flags)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "--dtype",
        "--sizes",
        "--sizes",
        "--nodes",
        "--ranks-per-node",
        "--repeat",
        "--op",
        "--schedule",
        "--daemon-cores",
    ]


def test_sizes_are_whole_elements_and_at_least_one() -> None:
    assert make_plan(PlanFlags(sizes="11,8", dtype="float64")).sizes == (8, 8)
    with pytest.raises(PlanError, match="'7' is less than one element of 8 bytes"):
        make_plan(PlanFlags(sizes="7", dtype="float64"))


def test_a_mean_of_integers_is_refused() -> None:
    with pytest.raises(PlanError, match="mean needs a floating-point --dtype"):
        make_plan(PlanFlags(dtype="int32", op="mean"))


@pytest.mark.parametrize(
    "flags",
    [
        PlanFlags(nodes="3", op="max", daemon_cores="2"),
        PlanFlags(nodes="2", lab=True, rate="1gbit,none", delay="50ms", interfaces="2"),
    ],
)
def test_a_plan_survives_the_way_to_the_ranks(flags: PlanFlags) -> None:
    plan = make_plan(flags)
    assert Plan.from_json(plan.to_json()) == plan


def test_one_rate_is_for_all_nodes_and_several_are_one_each() -> None:
    same = make_plan(PlanFlags(nodes="3", lab=True, rate="1gbit")).lab
    mixed = make_plan(PlanFlags(nodes="2", lab=True, rate="1gbit,none", mtu="9000")).lab
    assert same == LabPlan(3, (10**9,) * 3)
    assert mixed == LabPlan(2, (10**9, None), mtu=9000)


def test_a_laboratory_has_links_without_a_limit_or_a_delay_unless_it_is_told() -> None:
    assert make_plan(PlanFlags(nodes="2", lab=True)).lab == LabPlan(2, (None, None))


def test_flags_of_a_laboratory_need_one() -> None:
    flags = PlanFlags(rate="1gbit", delay="1ms", mtu="1500", interfaces="1")
    with pytest.raises(PlanError) as caught:
        make_plan(flags)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        *("--rate", "--delay", "--mtu", "--interfaces"),
    ]
    assert all("--lab" in line for line in lines)


def test_every_wrong_flag_of_a_laboratory_is_listed() -> None:
    flags = PlanFlags(lab=True, rate="1gb", delay="5", mtu="100", interfaces="0")
    with pytest.raises(PlanError) as caught:
        make_plan(flags)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        *("--nodes", "--rate", "--delay", "--mtu", "--interfaces"),
    ]


def test_a_wrong_number_of_nodes_is_named_once() -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(PlanFlags(lab=True, nodes="two"))
    assert str(caught.value).count("--nodes") == 1


def test_rates_are_as_many_as_nodes() -> None:
    with pytest.raises(PlanError, match="--rate: 2 rates for 3 nodes"):
        make_plan(PlanFlags(nodes="3", lab=True, rate="1gbit,2gbit"))


@pytest.mark.parametrize(
    ("count", "cores"),
    [
        (1, [(0,), (1,), (4,), (0,)]),
        (2, [(0, 1), (0, 4), (1, 4), (0, 1)]),
        (9, [(0, 1, 4)] * 4),
    ],
)
def test_each_daemon_has_cores_of_its_own_as_long_as_there_are_enough(
    count: int, cores: list[tuple[int, ...]]
) -> None:
    assert [cores_of(node, count, (0, 1, 4)) for node in range(4)] == cores


def test_a_process_group_is_measured_with_more_than_all_reduces() -> None:
    flags = PlanFlags(path="pg", op="all-gather", sizes="4KiB", ranks_per_node="4")
    assert make_plan(flags).path == "pg"
    with pytest.raises(PlanError, match="broadcast goes with --path pg"):
        make_plan(PlanFlags(op="broadcast"))
    with pytest.raises(PlanError, match="multiples of 3 elements"):
        make_plan(PlanFlags(path="pg", op="broadcast", ranks_per_node="3"))
