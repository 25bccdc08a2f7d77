"""Grafana's dashboards: what the code in deploy/grafana makes of them, and what they ask."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = {path.stem: path for path in sorted((GRAFANA / "dashboards").glob("*.json"))}
COLUMNS = 24

# Grafana's own: what they stand for is put in before Prometheus is asked.
VARIABLES = {"$__rate_interval": "20s", "$instance": ".*"}


def dashboard(uid: str) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(DASHBOARDS[uid].read_text())
    return board


PANELS = [
    pytest.param(panel, id=f"{uid}: {panel['title']}")
    for uid in DASHBOARDS
    for panel in dashboard(uid)["panels"]
]


def substituted(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def everything_in(value: object) -> Iterator[tuple[str, object]]:
    """Yield each name and its value, however deep."""
    if isinstance(value, dict):
        yield from value.items()
    for one in value.values() if isinstance(value, dict) else value:  # type: ignore[attr-defined]
        if isinstance(one, dict | list):
            yield from everything_in(one)


def test_the_dashboards_are_what_the_code_makes_now() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk is missing")
    from boards import BOARDS, draw

    fresh = {board.uid: draw.text(board) for board in BOARDS}
    stale = {uid for uid, path in DASHBOARDS.items() if path.read_text() != fresh.get(uid)}
    assert (stale, fresh.keys() - DASHBOARDS.keys()) == (set(), set()), "make dashboards"


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_goes_by_the_name_of_its_file(uid: str) -> None:
    assert dashboard(uid)["uid"] == uid


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_has_nothing_that_grafanas_schema_refuses(uid: str) -> None:
    found = list(everything_in(dashboard(uid)))
    bounds = [one for name, one in found if name == "steps"]
    nulls = [name for name, one in found if one is None]
    # Only the lowest threshold, which has no bound below it.
    assert nulls == ["value"] * len(bounds)
    assert {"style", "auto"} & {name for name, _ in found} == set()


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows_and_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]


@pytest.mark.parametrize("panel", PANELS)
def test_a_panels_queries_are_prometheus_language(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expression = substituted(target["expr"])
        assert "$" not in expression
        promql_parser.parse(expression)


@pytest.mark.parametrize("panel", PANELS)
def test_a_query_is_about_the_daemons_that_are_chosen(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        ours = re.findall(r"\b(?:gradwire|process|python)_\w+(.{0,10})", target["expr"])
        assert all(rest.startswith("{instance") for rest in ours)


@pytest.mark.parametrize("panel", PANELS)
def test_a_legend_names_only_labels_that_its_query_keeps(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
        kept = {label for labels in grouped for label in labels.split(", ")}
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_lie_side_by_side_on_the_grid(uid: str) -> None:
    places = [panel["gridPos"] for panel in dashboard(uid)["panels"]]
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_the_panels_of_a_dashboard_have_numbers_of_their_own(uid: str) -> None:
    numbers = [panel["id"] for panel in dashboard(uid)["panels"]]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_asks_the_source_that_is_set_up(uid: str) -> None:
    provisioned = GRAFANA / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(provisioned.read_text())["datasources"]
    named = [one for name, one in everything_in(dashboard(uid)) if name == "datasource"]
    assert named
    assert all(one == {"type": source["type"], "uid": source["uid"]} for one in named)


def grafana() -> dict[str, Any]:
    """The service of that name."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    service: dict[str, Any] = services["grafana"]
    return service


def test_the_layout_is_checked_against_the_grafana_that_is_started() -> None:
    versions = re.findall(r"@grafana/schema@([\d.]+)", (ROOT / ".ci" / "check").read_text())
    assert [f"grafana/grafana:{version}" for version in versions] == [grafana()["image"]]


def test_grafana_opens_on_a_dashboard_that_is_there() -> None:
    compose = grafana()
    home = Path(compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    mounts = dict(volume.split(":")[1::-1] for volume in compose["volumes"][:2])
    assert (ROOT / mounts[str(home.parent)] / home.name).is_file()
    providers = GRAFANA / "provisioning" / "dashboards" / "gradwire.yml"
    (provider,) = yaml.safe_load(providers.read_text())["providers"]
    assert provider["options"]["path"] == str(home.parent)
