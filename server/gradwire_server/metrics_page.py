"""The metrics page: this process's metrics and status, and its workers' metrics."""

from __future__ import annotations

import contextlib
import http
import http.client
import logging
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import (
    CollectorRegistry,
    Metric,
    generate_latest,
    make_wsgi_app,
    start_http_server,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gradwire_proto.addresses import join_address, split_address
from gradwire_server import web
from gradwire_server.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradwire_server.metrics import Metrics

log = logging.getLogger(__name__)

FETCH_SECONDS = 2.0

SILENCE_SECONDS = 10.0
"""How long a visitor may take from one line of its request to the next: it has a thread."""


@contextlib.contextmanager
def serving(
    listen: str, metrics: Metrics, workers: list[str], ask: web.Ask | None = None
) -> Iterator[str]:
    """Serve the page; gives the real address, or nothing where it is off.

    Of the status there is only this process's: each worker has a page of its own.
    """
    if not listen:
        yield ""
        return
    registry = metrics.registry
    if workers:
        registry = CollectorRegistry()
        registry.register(_Together(metrics.registry, workers))
    host, port = split_address(listen)
    try:
        server, thread = start_http_server(port, host, registry=registry)
    except OSError as error:
        raise StartError(
            f"can't serve metrics on {listen}: {error.strerror}. --metrics-listen HOST:0 takes"
            " any free port, --metrics-listen '' switches the page off"
        ) from error
    server.RequestHandlerClass = _Visit
    server.set_app(web.application(make_wsgi_app(registry), ask))
    try:
        yield join_address(host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Visit(WSGIRequestHandler):
    """One connection. What goes wrong with it is no news."""

    @property
    def timeout(self) -> float:  # type: ignore[override]  # read, once, by setup
        """See SILENCE_SECONDS."""
        return SILENCE_SECONDS

    def handle(self) -> None:
        """Answer, unless the visitor goes away or says nothing."""
        with contextlib.suppress(OSError):
            super().handle()

    def finish(self) -> None:
        """Say what is left to say, to whoever is still there."""
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: Prometheus comes every few seconds."""


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
        texts = [generate_latest(self._own).decode(), *map(_fetch, self._workers)]
        for number, text in enumerate(texts):
            for family in text_string_to_metric_families(text):
                whole = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "worker": str(number)}
                    whole.add_sample(sample.name, labels, sample.value)
        return families.values()


def _fetch(address: str) -> str:
    """A worker's page, or nothing."""
    try:
        connection = http.client.HTTPConnection(*split_address(address), timeout=FETCH_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.OK:
                return answer.read().decode()
            trouble = f"it answers {answer.status}"
    except (OSError, http.client.HTTPException) as error:
        trouble = repr(error)
    log.warning("no metrics from the worker at %s: %s", address, trouble)
    return ""
