"""What must hold of the repository itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gradwire_ops import metrics_table
from gradwire_server.metrics import Metrics

ROOT = Path(__file__).parents[2]
FOLDERS = ("client", "server", "proto", "deploy", "tests")
MAX_LINES = 400
GENERATED = ("_pb2.py", "_pb2_grpc.py")

# Dashboards and alerts of others hang on these names.
METRICS = {
    "gradwire_build",
    "gradwire_certificate_expiry_timestamp_seconds",
    "gradwire_codec_encoded_bytes",
    "gradwire_codec_error_ratio",
    "gradwire_codec_raw_bytes",
    "gradwire_errors",
    "gradwire_frames_damaged",
    "gradwire_frames_resent",
    "gradwire_in_flight_bytes",
    "gradwire_in_flight_limit_bytes",
    "gradwire_jobs",
    "gradwire_link_bandwidth_bytes_per_second",
    "gradwire_link_queued_bytes",
    "gradwire_link_reopened",
    "gradwire_link_round_trip_seconds",
    "gradwire_ledger_seconds",
    "gradwire_link_up",
    "gradwire_local_bytes",
    "gradwire_peer_bytes",
    "gradwire_peer_payload_bytes",
    "gradwire_rank_communicating_seconds",
    "gradwire_rank_last_arrivals",
    "gradwire_rank_steps",
    "gradwire_rank_straggling",
    "gradwire_ranks_joined",
    "gradwire_ranks_missing",
    "gradwire_residuals_dropped",
    "gradwire_resumes",
    "gradwire_round_seconds",
    "gradwire_rounds",
    "gradwire_stalled_rounds",
    "gradwire_step_seconds",
}


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def pins() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    top = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert top is not None
    assert top[1] == project()["version"]


def test_every_requirement_is_pinned_for_development() -> None:
    extras = project()["optional-dependencies"].values()
    wanted = {name_of(line) for line in sum(extras, project()["dependencies"])}
    assert wanted - {name_of(pin) for pin in pins()} == set()


def test_every_pin_is_exact_and_of_a_version_that_all_builds_bear() -> None:
    assert [pin for pin in pins() if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []


def test_no_file_is_longer_than_can_be_read() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    lengths = {path: len(path.read_text().splitlines()) for path in paths}
    too_long = {path: lines for path, lines in lengths.items() if lines > MAX_LINES}
    assert {path for path in too_long if not path.name.endswith(GENERATED)} == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_repository_is_not_importable(folder: str) -> None:
    # -P keeps the current folder off the path, from which any folder could be imported.
    command = [sys.executable, "-P", "-c", f"import {folder}"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert f"No module named '{folder}'" in result.stderr


def test_the_daemon_has_the_metrics_it_promised() -> None:
    families = Metrics(CollectorRegistry(), "0").registry.collect()
    assert METRICS - {family.name for family in families} == set()


def test_the_table_of_metrics_is_as_they_are_declared() -> None:
    names = {re.sub("_(total|info)$", "", row.name) for row in metrics_table.rows()}
    assert names >= METRICS
    assert metrics_table.PAGE.read_text() == metrics_table.page(), "make metrics writes it"


def test_the_dashboards_together_ask_for_every_metric_and_for_no_other() -> None:
    dashboards = (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")
    panels = [panel for path in dashboards for panel in json.loads(path.read_text())["panels"]]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    names = set(re.findall(r"\bgradwire_\w+", " ".join(queries)))
    families = {re.sub("_(total|bucket|sum|count|info)$", "", name) for name in names}
    assert families == METRICS
