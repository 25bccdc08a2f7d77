"""Series go with the last job that has them; counters that come back go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from gradwire_server import series
from gradwire_server.series import Figure, Kind, Series

if TYPE_CHECKING:
    import pytest

FIGURES = (
    Figure[SimpleNamespace]("sent", "Of it.", Kind.COUNTER, lambda one: one.sent, {"way": "a"}),
    Figure[SimpleNamespace]("sent", "", Kind.COUNTER, lambda one: one.sent + 1, {"way": "b"}),
    Figure[SimpleNamespace]("most", "Of it.", Kind.HIGHEST, lambda one: one.size),
    Figure[SimpleNamespace]("least", "Of it.", Kind.LOWEST, lambda one: one.size),
    Figure[SimpleNamespace]("sum", "Of it.", Kind.TOTAL, lambda one: one.size),
)


class Page:
    """A registry with one series, and jobs that have some of it."""

    def __init__(self, label: str = "peer") -> None:
        self.registry = CollectorRegistry()
        self.series: Series[SimpleNamespace] = Series(label, FIGURES)
        self.registry.register(self.series)

    def job(self, peer: str, sent: int, size: float | None) -> SimpleNamespace:
        job = SimpleNamespace(sent=sent, size=size)
        self.series.add(id(job), lambda: [(peer, job)])
        return job

    def end(self, job: SimpleNamespace) -> None:
        self.series.drop(id(job))

    def read(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_jobs_with_the_same_peer_are_joined_as_the_kind_of_figure_wants() -> None:
    page = Page()
    for sent, size in ((3, 5.0), (4, 2.0), (0, None)):
        page.job("x", sent, size)
    assert page.read("sent_total", peer="x", way="a") == 7
    assert page.read("sent_total", peer="x", way="b") == 10
    values = [page.read(name, peer="x") for name in ("most", "least", "sum")]
    assert values == [5.0, 2.0, 7.0]


def test_what_is_not_known_has_no_series() -> None:
    page = Page()
    page.job("x", 1, None)
    assert page.read("most", peer="x") is None
    assert page.read("sent_total", peer="x", way="a") == 1


def test_a_counter_that_comes_back_goes_on_and_one_of_two_jobs_that_ends_takes_nothing() -> (
    None
):
    page = Page()
    first, second = page.job("x", 5, 1.0), page.job("x", 2, 1.0)
    page.end(first)
    assert page.read("sent_total", peer="x", way="a") == 7
    assert page.read("sum", peer="x") == 1.0
    first.sent = 100
    page.end(second)
    page.end(second)
    assert page.read("sent_total", peer="x", way="a") is None
    page.job("x", 1, 1.0)
    assert page.read("sent_total", peer="x", way="a") == 8, "what was counted later is lost"


def test_only_so_many_are_remembered_those_that_ended_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(series, "MOST_KEPT", 2)
    page = Page()
    for peer in "abac":
        page.end(page.job(peer, 1, 1.0))
    for peer in "abc":
        page.job(peer, 1, 1.0)
    values = [page.read("sent_total", peer=peer, way="a") for peer in "abc"]
    assert values == [3, 1, 2]


def test_without_a_label_there_is_one_and_always() -> None:
    page = Page("")
    assert page.read("sum") == 0.0
    page.job("", 1, 3.0)
    page.job("", 1, 4.0)
    assert page.read("sum") == 7.0


def test_the_families_are_there_without_any_job() -> None:
    text = generate_latest(Page().registry).decode()
    assert text.count("# TYPE ") == 4
    assert "# HELP sent_total Of it." in text
