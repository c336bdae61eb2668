"""The rules and the Grafana dashboard that are shipped: checked by promtool where it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

MONITORING = Path(__file__).parents[3] / "monitoring"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="no promtool here: `make monitoring` installs it (Debian: prometheus) and runs this",
)


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_rules_are_rules_and_alert_when_they_should() -> None:
    promtool("check", "rules", "rules.yml")
    promtool("test", "rules", "rules_test.yml")


@needs_promtool
def test_every_expression_of_the_grafana_dashboard_parses(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    lines = ["groups: [{name: g, rules: ["]
    for number, expression in enumerate(expressions()):
        text = json.dumps(expression.replace("$__rate_interval", "1m"))
        lines.append(f"{{record: 'r:{number}', expr: {text}}},")
    rules.write_text("\n".join([*lines, "]}]"]))
    promtool("check", "rules", str(rules))


def test_every_alert_says_what_to_do() -> None:
    alerts = re.split(r"- alert: ", (MONITORING / "rules.yml").read_text())[1:]
    assert len(alerts) >= 10
    for alert in alerts:
        assert re.search(r"severity: (page|ticket)", alert), alert
        assert "summary:" in alert
        assert "action:" in alert


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
