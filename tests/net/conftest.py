"""Tests on a network of their own; without the rights or tools for one, none of them runs."""

from __future__ import annotations

import os

import pytest

from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabError, LabPlan


@pytest.fixture(scope="session", autouse=True)
def laboratory() -> None:
    """A laboratory can be built here."""
    _try(LabPlan(2, (10**9, 10**9)))


@pytest.fixture(scope="session")
def delays(laboratory: None) -> None:
    """Its links can have a delay."""
    _try(LabPlan(2, delay_seconds=0.001))


def _try(plan: LabPlan) -> None:
    try:
        with lab(plan):
            pass
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def no_settings_of_the_users() -> None:
    """What a developer has set for his own jobs is not for the tests'."""
    for name in [name for name in os.environ if name.startswith("GRADWIRE_")]:
        if not name.startswith("GRADWIRE_TEST_"):
            del os.environ[name]
