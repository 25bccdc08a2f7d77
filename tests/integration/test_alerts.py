"""promtool plays hours of metrics to the alert rules, and says whether they fire."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOYED = ROOT / "deploy" / "prometheus"
TRIALS = Path(__file__).with_name("rules") / "alerts.yml"

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def promtool(*arguments: str | Path) -> tuple[int, str]:
    """Its exit status, and all that it says."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_prometheus_accepts_its_configuration_and_the_rules_that_it_loads() -> None:
    status, text = promtool("check", "config", DEPLOYED / "prometheus.yml")
    assert status == 0, text
    assert "alerts.yml" in text


def test_alerts_fire_where_they_should_and_nowhere_else() -> None:
    status, text = promtool("test", "rules", TRIALS)
    assert status == 0, text


def test_a_rule_that_never_fires_would_be_found(tmp_path: Path) -> None:
    rules = DEPLOYED / "alerts.yml"
    (tmp_path / rules.name).write_text(rules.read_text().replace("== 0\n", "== 7\n"))
    relative = "../../../deploy/prometheus/alerts.yml"
    assert relative in TRIALS.read_text()
    trials = tmp_path / "trials.yml"
    trials.write_text(TRIALS.read_text().replace(relative, rules.name))
    status, text = promtool("test", "rules", trials)
    assert status == 1
    assert "GradwireDaemonDown" in text
