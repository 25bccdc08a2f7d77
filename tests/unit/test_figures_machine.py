"""What RESULTS.md says of the machine."""

from __future__ import annotations

import re

import pytest

from figures.machine import cpu_model, memory_gibibytes, this_machine

CPUINFO = """processor\t: 0
vendor_id\t: GenuineExample
model\t\t: 143
model name\t: An Example  CPU @ 2.70GHz

processor\t: 1
model name\t: An Example  CPU @ 2.70GHz
"""


def test_the_cpu_is_named_as_the_kernel_names_it() -> None:
    assert cpu_model(CPUINFO) == "An Example CPU @ 2.70GHz"


def test_a_cpu_without_a_name_is_told_by_its_kind() -> None:
    assert cpu_model("processor\t: 0\nBogoMIPS\t: 243.75\n").startswith("unnamed ")


def test_memory_is_in_gibibytes() -> None:
    assert memory_gibibytes("MemTotal:       25165824 kB\nMemFree: 1 kB\n") == 24


def test_memory_that_is_not_told_is_an_error() -> None:
    with pytest.raises(ValueError, match="MemTotal"):
        memory_gibibytes("MemFree: 1 kB\n")


def test_this_machine_has_all_that_is_told() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.memory_gib > 0
    assert re.fullmatch(r"\S+ at .+", machine.gradwire)
