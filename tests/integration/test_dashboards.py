"""Every query of every panel, asked of a real Prometheus that watches a job of two nodes."""
# No `from __future__ import annotations`: DDP compares hooks' annotations with its own types.

import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import Session
from gradwire_ops import certs, query
from gradwire_ops.cluster import Cluster, cluster

ProcessesOver: TypeAlias = Callable[..., Callable[..., list[Any]]]
Server: TypeAlias = Callable[[str], list[Any]]
Scraping: TypeAlias = Callable[[list[str]], AbstractContextManager[Server]]

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
PATIENCE_SECONDS = 40.0
LONGEST_SECONDS = 100.0
"""For the job: the crew may have to be hired first."""

# Grafana's own. A rate wants two scrapes at least; here there is one a second.
VARIABLES = {"$__rate_interval": "10s", "$instance": ".*"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    authority, folder = (tmp_path_factory.mktemp(name) for name in ("ca", "certs"))
    certs.init(authority, force=False)
    certs.issue(authority, certs.Order("n", ("127.0.0.1",), 90), folder, force=False)
    settings = {"GRADWIRE_METRICS_LISTEN": "127.0.0.1:0", "GRADWIRE_CERTS": str(folder)}
    with cluster(2, settings) as running:
        yield running


def queries() -> dict[str, str]:
    """What the panels ask, by dashboard, panel and letter."""
    asked = {}
    for path in DASHBOARDS.glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for variable, value in VARIABLES.items():
                    expression = expression.replace(variable, value)
                asked[f"{path.stem}: {panel['title']}: {target['refId']}"] = expression
    return asked


def train(session: Session, until: str) -> None:
    """Train until there is a file of this name; a lossy wire and a mistake go with it."""
    with pytest.raises(gradwire.MismatchError):
        session.all_reduce(torch.ones(7 + session.rank)).wait()
    model = DistributedDataParallel(nn.Linear(1024, 1024))
    model.register_comm_hook(session, gradwire.allreduce_hook)
    ends = torch.zeros(1)
    while not ends.item():
        model(torch.ones(1, 1024)).sum().backward()
        session.all_reduce(torch.ones(1 << 20), wire="int8").wait()
        # All ranks end with the same step.
        ends = torch.tensor([float(Path(until).exists())])
        session.all_reduce(ends, op="max").wait()


@contextmanager
def training(processes: Callable[..., list[Any]], until: Path) -> Iterator[None]:
    """Three ranks that train meanwhile, two of them at the first node."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(processes, (2, 1), train, str(until), patience=LONGEST_SECONDS)
        try:
            yield
        finally:
            until.touch()
            job.result()


def is_told(answer: list[Any], pages: list[str]) -> bool:
    """Whether there is a number: of all nodes together, or else of each of them."""
    numbers = [one for one in answer if not math.isnan(float(one["value"][1]))]
    return {one["metric"].get("instance") for one in numbers} in ({None}, set(pages))


def test_every_query_of_every_panel_has_an_answer_while_a_job_runs(
    nodes: Cluster, processes_over: ProcessesOver, prometheus: Scraping, tmp_path: Path
) -> None:
    pages = [query.status(address).metrics for address in nodes.addresses]
    processes = processes_over(nodes.addresses)
    open_queries = queries()
    assert open_queries
    end = time.monotonic() + PATIENCE_SECONDS
    with training(processes, tmp_path / "enough"), prometheus(pages) as server:
        while open_queries and time.monotonic() < end:
            time.sleep(0.5)
            for name, expression in list(open_queries.items()):
                if is_told(server(expression), pages):
                    del open_queries[name]
    assert open_queries == {}
