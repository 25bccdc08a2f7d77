"""The alert rules: that each is explained, tried, and about metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from gradwire_server.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
TRIALS = ROOT / "tests" / "integration" / "rules" / "alerts.yml"
RUNBOOK = DEPLOY / "RUNBOOK.md"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


ALERTS = {rule["alert"]: rule for rule in rules()}


def test_prometheus_loads_the_rules_that_lie_beside_its_configuration() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert config["rule_files"] == [RULES.name]
    # The rules name the job by which Prometheus knows the daemons.
    assert [scrape["job_name"] for scrape in config["scrape_configs"]] == ["gradwire"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert "./deploy/prometheus:/etc/prometheus:ro" in compose["prometheus"]["volumes"]


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_is_wrong_where_and_how_bad(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
    promql_parser.parse(rule["expr"])


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_leads_to_its_section_of_the_runbook(alert: str) -> None:
    page, _, section = ALERTS[alert]["annotations"]["runbook"].partition("#")
    assert (ROOT / page, section) == (RUNBOOK, alert.lower())
    text = RUNBOOK.read_text()
    (part,) = re.findall(rf"^## {alert}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\*\*(\w+)\*\*", part, re.MULTILINE) == ["Means", "Look", "Do"]


def test_the_runbook_has_no_section_for_what_is_no_alert() -> None:
    assert set(re.findall(r"^## (.*)$", RUNBOOK.read_text(), re.MULTILINE)) == ALERTS.keys()


def test_each_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    trials = [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load(TRIALS.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    assert set(trials) == {(alert, fires) for alert in ALERTS for fires in (True, False)}


def test_alerts_ask_only_for_metrics_that_exist() -> None:
    names = set(re.findall(r"\bgradwire_\w+", " ".join(rule["expr"] for rule in rules())))
    families = {re.sub("_total$", "", name) for name in names}
    daemon = {family.name for family in Metrics(CollectorRegistry(), "0").registry.collect()}
    assert families - daemon == set()
