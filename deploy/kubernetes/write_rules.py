"""Writes the PrometheusRule from the alert rules: `make rules`."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "alerts.yml"
RESOURCE = HERE / "components" / "monitoring" / "prometheusrule.yaml"

HEAD = """\
# Made from deploy/prometheus/alerts.yml by `make rules`; change that.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gradwire
  labels:
    app.kubernetes.io/name: gradwire
spec:
"""


def text() -> str:
    """The resource: the rules as they are, comments included, one level down."""
    lines = RULES.read_text().splitlines()
    rules = lines[lines.index("groups:") :]
    return HEAD + "".join(f"  {line}".rstrip() + "\n" for line in rules)


if __name__ == "__main__":
    RESOURCE.write_text(text())
