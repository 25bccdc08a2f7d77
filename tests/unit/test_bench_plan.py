from __future__ import annotations

import pytest

from gradwire_ops.bench_plan import Plan, PlanError, PlanFlags, make_plan


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
    ]


def test_sizes_are_whole_elements_and_at_least_one() -> None:
    assert make_plan(PlanFlags(sizes="11,8", dtype="float64")).sizes == (8, 8)
    with pytest.raises(PlanError, match="'7' is less than one element of 8 bytes"):
        make_plan(PlanFlags(sizes="7", dtype="float64"))


def test_a_mean_of_integers_is_refused() -> None:
    with pytest.raises(PlanError, match="mean needs a floating-point --dtype"):
        make_plan(PlanFlags(dtype="int32", op="mean"))


def test_a_plan_survives_the_way_to_the_ranks() -> None:
    plan = make_plan(PlanFlags(nodes="3", op="max"))
    assert Plan.from_json(plan.to_json()) == plan
