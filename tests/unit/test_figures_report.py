"""RESULTS.md says plainly what was measured, and what was missed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from figures.catalogue import AIMS, SETTINGS
from figures.machine import Machine
from figures.report import QUICK, Result, render
from figures.setting import MB, MIB, Bar, Benchmark, Cell, Comparison, Overlap, Program
from figures.tables import milliseconds
from figures.verdict import size_text, value, verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping

MACHINE = Machine(
    cpu="An Example CPU",
    cores=2,
    memory_gib=23.5,
    kernel="Linux 6.1",
    python="3.11.7",
    torch="2.13.0",
    grpcio="1.85.3",
    gradwire="0.1.0 at abcdef",
)
SETTING = Benchmark("pair", "A section", "2 x 1", "--lab", (MIB,), (Bar(MIB, "x gloo", 2),))


def measured(size: int = 64 * MIB, seconds: float = 0.1, **others: object) -> dict[str, Any]:
    return {
        "size_bytes": size,
        "seconds": seconds,
        "gloo_seconds": 0.15,
        "speedup_vs_gloo": 0.15 / seconds,
        "limit_seconds": 0.09,
        "efficiency": 0.09 / seconds,
        "daemon_cpu_seconds_per_gigabyte": 1.5,
        "p50_seconds": None,
        "p99_seconds": None,
        "gloo_p50_seconds": None,
        "gloo_p99_seconds": None,
        "nodes": 2,
        "rate_bits_per_second": 500_000_000,
        "interfaces": 2,
        "wire_bytes": 250_000.0,
        **others,
    }


def result(*rows: Mapping[str, Any], quick: bool = False, failed: bool = False) -> Result:
    return Result(rows, "2026-01-02", MACHINE, quick, failed)


def line_of(page: str, *words: str) -> str:
    (line,) = [line for line in page.splitlines() if all(word in line for word in words)]
    return line


@pytest.mark.parametrize(("seconds", "word"), [(0.075, "reached"), (0.0751, "**missed**")])
def test_a_bar_is_reached_or_missed(seconds: float, word: str) -> None:
    (verdict,) = verdicts((SETTING,), (), {"pair": [measured(MIB, seconds)]})
    assert (verdict.aim, verdict.word) == ("2.00 x gloo", word)


@pytest.mark.parametrize("rows", [{}, {"pair": [measured(2 * MIB)]}])
def test_a_bar_whose_size_was_not_measured_is_neither(rows: dict[str, Any]) -> None:
    (verdict,) = verdicts((SETTING,), (), rows)
    assert verdict.word == "not measured"


def test_an_efficiency_that_there_is_not_was_not_measured() -> None:
    setting = Benchmark("pair", "", "", "", None, (Bar(MIB, "efficiency", 0.9),))
    rows = {"pair": [measured(MIB, efficiency=None)]}
    (verdict,) = verdicts((setting,), (), rows)
    assert verdict.reached is None


@pytest.mark.parametrize(("seconds", "reached"), [(1.05, True), (1.06, False)])
def test_a_comparison_is_made_by_the_byte(seconds: float, reached: bool) -> None:
    claim = Comparison("no drop", Cell("pair", 50 * MB), Cell("pair", 5 * MB), 1.05)
    rows = {"pair": [measured(5 * MB, 0.1), measured(50 * MB, seconds)]}
    *_, verdict = verdicts((SETTING,), (claim,), rows)
    assert verdict.reached is reached


@pytest.mark.parametrize(
    ("seconds", "overlapped", "reached"),
    [(0.9, True, [True, True]), (0.91, True, [True, False]), (0.9, False, [False, True])],
)
def test_an_overlap_is_of_time_and_of_order(
    seconds: float, overlapped: bool, reached: list[bool]
) -> None:
    times = {"compute_seconds": 0.4, "communication_seconds": 0.6, "seconds": seconds}
    rows = {"pair": [{**times, "overlapped": overlapped}]}
    training = Program("pair", "A section", "2 x 1", "figures.training")
    found = verdicts((training,), (Overlap("pair", 0.9),), rows)
    assert [one.reached for one in found] == reached


def test_the_links_rate_is_that_of_all_links_together() -> None:
    row = measured(1000 * MB, 10, nodes=2)
    assert value(row, "of the links' rate") == pytest.approx(0.8)
    assert value({**row, "nodes": 4}, "of the links' rate") == pytest.approx(1.2)


def test_what_is_lost_to_gloo_is_told() -> None:
    page = render({"5gbit-2x2": result(measured(seconds=0.3))})
    assert "0 reached, 1 missed" in page
    assert line_of(page, "- 2 nodes x 2 ranks, 5gbit", "0.50 x gloo")
    assert line_of(page, "5gbit", "64 MiB", "1.05 x gloo", "300", "**missed**")


def test_a_page_without_losses_says_so() -> None:
    assert "In no row below." in render({"5gbit-2x2": result(measured())})


def test_the_page_says_what_it_was_made_on() -> None:
    other = result(measured(), quick=True)
    page = render({"5gbit-2x2": result(measured()), "unequal": other})
    for words in (MACHINE.cpu, "23.5", MACHINE.kernel, "2.13.0", "1.85.3", "abcdef", "2026"):
        assert words in page
    assert QUICK in page


def test_what_failed_and_what_was_not_run_is_told() -> None:
    page = render({"unequal": result(failed=True)})
    assert line_of(page, "failed", "unequal")
    assert "5gbit-2x2" in line_of(page, "Not run")


def test_a_training_says_where_two_nodes_beat_one() -> None:
    def step(nodes: int, seconds: float, gloo_seconds: float) -> dict[str, Any]:
        return {
            "nodes": nodes,
            "seconds": seconds,
            "gloo_seconds": gloo_seconds,
            "compute_seconds": 0.6,
            "communication_seconds": 0.9,
            "first_bucket_seconds": 0.02,
            "last_layer_seconds": 0.4,
            "overlapped": True,
        }

    page = render(
        {
            "training-slow-1": result(step(1, 0.5, 0.64)),
            "training-slow-2": result(step(2, 0.8, 1.28)),
        }
    )
    line = line_of(page, "2 nodes x 1 rank, slow", "yes, 1.25 x")
    assert "80 | 50 | yes, 1.25 x | **no**, 0.78 x" in line
    assert line_of(page, "2 nodes x 1 rank, slow", "yes, by 700 ms")


def test_every_table_has_as_many_cells_in_each_line() -> None:
    rows = [measured(size) for size in (64 * MIB, 10 * MB, 500 * MB)]
    socket = {"size_bytes": 10 * MB, "seconds": 0.01, "cpu_seconds": 0.01}
    copy = {"size_bytes": 64 * MIB, "seconds": 0.01}
    names = [each.name for each in SETTINGS if isinstance(each, Benchmark)]
    others = {"copy": result(copy), "socket": result(socket)}
    page = render({name: result(*rows) for name in names} | others)
    for block in page.split("\n\n"):
        if block.startswith("|"):
            assert len({len(re.findall(r"\|", line)) for line in block.splitlines()}) == 1


def test_settings_and_what_is_compared_have_their_names() -> None:
    sizes = {each.name: each.sizes for each in SETTINGS if isinstance(each, Benchmark)}
    assert len({each.name for each in SETTINGS}) == len(SETTINGS)
    for aim in AIMS:
        match aim:
            case Comparison():
                for cell in (aim.one, aim.other):
                    assert cell.size_bytes in (sizes[cell.setting] or ())
            case Overlap():
                assert aim.setting in {each.name for each in SETTINGS}


def test_numbers_are_as_long_as_they_are_exact() -> None:
    assert [milliseconds(each) for each in (0.00085, 0.0123, 1.2345, None)] == [
        "0.85",
        "12.3",
        "1234",
        "",
    ]
    assert [size_text(each) for each in (MB, 500 * MB, 64 * MIB)] == [
        "1 MB",
        "500 MB",
        "64 MiB",
    ]
