"""Tests on a network of their own; without the rights or tools for one, none of them runs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire_ops.lab import lab
from gradwire_ops.lab_plan import LabError, LabPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    Seats = Callable[[Sequence[str]], AbstractContextManager[list[gradwire.Session]]]


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


@pytest.fixture(scope="session")
def seats() -> Seats:
    """seats(addresses): a job with a rank at each of these daemons, all in this process."""
    return _seats


@contextmanager
def _seats(addresses: Sequence[str]) -> Iterator[list[gradwire.Session]]:
    store = dist.HashStore()
    torch.set_num_threads(1)

    def one(rank: int) -> gradwire.Session:
        return gradwire.connect(
            store=store, rank=rank, world_size=len(addresses), daemon=addresses[rank]
        )

    with ExitStack() as sessions, ThreadPoolExecutor(len(addresses)) as pool:
        yield [sessions.enter_context(each) for each in pool.map(one, range(len(addresses)))]
