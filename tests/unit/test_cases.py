"""The list behind `make cases`."""

from __future__ import annotations

import runpy
from pathlib import Path

CASES = runpy.run_path(str(Path(__file__).parents[1] / "cases.py"))


def test_a_mark_is_found_on_a_test_a_parameter_and_a_module() -> None:
    source = """
pytestmark = pytest.mark.case("M25")
@pytest.mark.case("M01", "M03")
@pytest.mark.parametrize("size", [pytest.param(0, marks=pytest.mark.case("M24"))])
def test_it(size): other.case("no mark"); pytest.mark.skip("M99")
"""
    assert set(CASES["marks"](source)) == {"M01", "M03", "M24", "M25"}


def test_every_case_carries_a_test() -> None:
    assert sorted(CASES["CASES"].keys() - CASES["found"]()) == []


def test_every_mark_names_a_case() -> None:
    assert sorted(CASES["found"]().keys() - CASES["CASES"].keys()) == []
