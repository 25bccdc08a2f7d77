"""CONVERGENCE.md says plainly what was trained, and what was missed."""

from __future__ import annotations

import pytest

from curves.catalogue import DIGITS, TEXT, WIRES, Run
from curves.report import SHORT, Verdict, render, result, verdicts
from figures.machine import Machine

MACHINE = Machine("An Example CPU", 2, 23.5, "Linux 6.1", "3.11.7", "2.13.0", "1.85.3", "0.1.0")
GLOO = WIRES[0]


def digits(wire: str, *accuracies: float, same_bits: bool = True) -> list[Run]:
    return [
        Run("digits", wire, seed, [2.0, 1.0], each, 0.1, 1000.0, wire != "gloo", same_bits, 9.0)
        for seed, each in enumerate(accuracies)
    ]


def text(wire: str, *losses: float, sent: float = 1000.0) -> list[Run]:
    return [
        Run("text", wire, seed, [4.0, 3.0], None, each, sent, wire != "gloo", True, 9.0)
        for seed, each in enumerate(losses)
    ]


def verdict(runs: list[Run], subject: str, wire: str) -> Verdict:
    (found,) = [
        one for one in verdicts(runs) if subject in one.subject.lower() and wire in one.wire
    ]
    return found


def page(runs: list[Run], *failed: str, short: bool = False) -> str:
    return render(runs, failed, "2026-01-02", MACHINE, short=short)


def line_of(text: str, *words: str) -> str:
    (line,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return line


@pytest.mark.parametrize(
    ("wire", "accuracy", "reached"),
    [
        ("bf16", 0.9671, True),
        ("bf16", 0.9669, False),
        ("int8", 0.9671, True),
        ("int8", 0.9669, False),
        ("int8", 0.99, True),
        ("topk", 0.9601, True),
        ("topk", 0.9599, False),
    ],
)
def test_accuracy_may_be_lower_by_so_many_points(
    wire: str, accuracy: float, reached: bool
) -> None:
    runs = digits("gloo", 0.96, 0.98) + digits(wire, accuracy, accuracy)
    assert verdict(runs, "digits", wire).reached is reached


@pytest.mark.parametrize(
    ("wire", "loss", "reached"),
    [
        ("bf16", 2.019, True),
        ("int8", 2.021, False),
        ("int8", 1.5, True),
        ("topk", 2.059, True),
        ("topk", 2.061, False),
    ],
)
def test_a_loss_may_be_higher_by_so_much_of_gloos(
    wire: str, loss: float, reached: bool
) -> None:
    runs = text("gloo", 1.9, 2.1) + text(wire, loss, loss)
    assert verdict(runs, "text", wire).reached is reached


@pytest.mark.parametrize(("loss", "reached"), [(2.13, True), (2.15, False), (1.85, False)])
def test_the_exact_wire_is_within_what_a_seed_changes_both_ways(
    loss: float, reached: bool
) -> None:
    runs = text("gloo", 1.9, 2.1) + text("exact", loss, loss)
    assert verdict(runs, "text", "exact").reached is reached


def test_where_a_seed_changes_nothing_one_example_is_allowed() -> None:
    runs = digits("gloo", 0.97, 0.97)
    near, far = 0.97 - 0.9 * DIGITS.grain, 0.97 - 1.1 * DIGITS.grain
    assert verdict(runs + digits("exact", near, near), "digits", "exact").reached
    assert not verdict(runs + digits("exact", far, far), "digits", "exact").reached


def test_what_is_missing_is_not_measured_and_what_has_no_aim_has_no_verdict() -> None:
    runs = digits("gloo", 0.97) + digits("fp8", 0.5)
    found = list(verdicts(runs))
    assert {one.word for one in found if one.subject != "both"} == {"not measured"}
    assert not [one for one in found if "fp8" in one.wire or "PowerSGD" in one.wire]


def test_ranks_that_parted_are_named() -> None:
    runs = digits("gloo", 0.97) + digits("int8", 0.97, same_bits=False)
    found = verdict(runs, "both", "all")
    assert (found.found, found.reached) == ("not in digits over int8", False)


def test_a_row_has_the_mean_the_spread_the_difference_and_the_bytes() -> None:
    runs = text("gloo", 1.9, 2.1, sent=4096) + text("int8", 2.0, 2.02, sent=1024)
    found = page(runs)
    gloo = "| plain DDP on gloo | 2.0000 | 0.1414 |  | 4 KiB (worked out) |  |"
    assert gloo in found
    assert "| int8, feedback | 2.0100 | 0.0141 | +0.50% | 1 KiB | 0.250 |" in found
    assert "reached" in line_of(found, "English", "int8", "at most 1% more")
    assert "2 seeds" in found
    assert f"## {TEXT.title}" in found
    assert f"## {DIGITS.title}" not in found


def test_a_single_seed_has_no_spread() -> None:
    found = result(TEXT, GLOO, text("gloo", 2.0))
    assert found is not None
    assert (found.mean, found.spread, found.seeds) == (2.0, 0.0, 1)


def test_a_short_run_and_a_failed_training_are_said_to_be_so() -> None:
    runs = digits("gloo", 0.97)
    assert SHORT in page(runs, short=True)
    assert SHORT not in page(runs)
    assert "These failed, and have no figures: text over topk." in page(runs, "text over topk")
