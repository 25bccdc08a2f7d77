"""The metrics page: this process's metrics and status, and its workers' metrics."""

from __future__ import annotations

import contextlib
import http
import http.client
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Metric,
    make_wsgi_app,
)
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gradwire_proto.addresses import join_address, split_address
from gradwire_server import web
from gradwire_server.errors import StartError
from gradwire_server.hosts import Hosts
from gradwire_server.visitors import receiving

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradwire_server.metrics import Metrics

log = logging.getLogger(__name__)

FETCH_SECONDS = 2.0


@contextlib.contextmanager
def serving(
    listen: str,
    metrics: Metrics,
    workers: list[str],
    ask: web.Ask | None = None,
    names: str = "",
) -> Iterator[str]:
    """Serve the page; gives the real address, or nothing where it is off.

    `names`: see Hosts.
    """
    if not listen:
        yield ""
        return
    registry = metrics.registry
    if workers:
        registry = CollectorRegistry()
        registry.register(_Together(metrics.registry, workers))
    host, port = split_address(listen)
    application = web.application(make_wsgi_app(registry), ask, Hosts(host, names).welcome)
    with contextlib.ExitStack() as stack:
        try:
            bound = stack.enter_context(receiving(host, port, application))
        except OSError as error:
            raise StartError(
                f"can't serve metrics on {listen}: {error.strerror}. --metrics-listen HOST:0"
                " takes any free port, --metrics-listen '' switches the page off"
            ) from error
        yield join_address(host, bound)


class _Together(Collector):
    """All processes' metrics, with a label that says whose they are."""

    def __init__(self, own: CollectorRegistry, workers: list[str]) -> None:
        self._own = own
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is is only known when it is asked for."""
        return []

    def collect(self) -> Iterable[Metric]:
        """One family for all processes; one that does not answer is left out, with a word."""
        families: dict[str, Metric] = {}
        with ThreadPoolExecutor(len(self._workers)) as pool:
            pages = [self._own.collect(), *pool.map(_fetch, self._workers)]
        for number, page in enumerate(pages):
            for family in page:
                whole = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                worker = str(number)
                whole.samples += [
                    sample._replace(labels={**sample.labels, "worker": worker})
                    for sample in family.samples
                ]
        return families.values()


def _fetch(address: str) -> list[Metric]:
    """What is on a worker's page, or nothing. In OpenMetrics' text, which has the examples."""
    try:
        connection = http.client.HTTPConnection(*split_address(address), timeout=FETCH_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics", headers={"Accept": CONTENT_TYPE_LATEST})
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.OK:
                text = answer.read().decode()
                read = text_string_to_metric_families
                return list(read(text))  # type: ignore[no-untyped-call]  # it has no hints
            trouble = f"it answers {answer.status}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        trouble = repr(error)
    log.warning("no metrics from the worker at %s: %s", address, trouble)
    return []
