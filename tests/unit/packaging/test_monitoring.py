"""The rules and the Grafana dashboard that are shipped; promtool judges them among the component
tests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

MONITORING = Path(__file__).parents[3] / "monitoring"


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
