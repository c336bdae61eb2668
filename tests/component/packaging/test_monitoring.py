"""The rules and the Grafana dashboard that are shipped, as promtool judges them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.packaging.test_monitoring import MONITORING, expressions

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
