"""Writes the PrometheusRule from the alert rules, and copies the example: `make rules`.

Kustomize takes no files from elsewhere.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "alerts.yml"
RESOURCE = HERE / "components" / "monitoring" / "prometheusrule.yaml"

EXAMPLE = HERE.parent / "examples" / "train.py"
COPY = HERE / "job" / "common" / "train.py"

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
    COPY.write_text(EXAMPLE.read_text())
