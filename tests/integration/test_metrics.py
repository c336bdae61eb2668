"""What a live scrape has: every daemon, clean to promtool, and every name that rules and the
Grafana dashboard ask for."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.rigs.fleet import Fleet, wait_until
from tests.rigs.load import Ask, Load

MONITORING = Path(__file__).parents[2] / "monitoring"


def scrape(fleet: Fleet) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", fleet.health_port, timeout=10)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def promtool(page: str) -> subprocess.CompletedProcess[str]:
    command = ["promtool", "check", "metrics"]
    return subprocess.run(command, input=page, capture_output=True, text=True, check=False)


async def used(fleet: Fleet) -> None:
    """One request was served, its timeline is written, and D has reported its KV's counts."""
    ask = Ask(prompt_tokens=(1350, 1350), max_tokens=8)
    answer = await Load(fleet.url, rate=1.0, ask=ask).one()
    assert (answer.status, answer.fault) == (200, "")

    def counted() -> bool:
        page = scrape(fleet)
        return all(
            f"{name}_total{{" in page for name in ("baton_pair_handoffs", "baton_kv_recomputes")
        )

    wait_until("its timeline and its KV are counted", counted, 15.0)


def names(text: str) -> set[str]:
    return set(re.findall(r"\b(?:baton|process)_[a-z0-9_]+", text))


async def test_rules_and_dashboard_name_only_what_is_there(sim_fleet: Fleet) -> None:
    await used(sim_fleet)
    there = {
        sample.name
        for family in text_string_to_metric_families(scrape(sim_fleet))
        for sample in family.samples
    }
    grafana = json.loads((MONITORING / "grafana.json").read_text())
    asked = names(json.dumps([panel["targets"] for panel in grafana["panels"]]))
    rules = (MONITORING / "rules.yml").read_text()
    asked |= names("\n".join(line for line in rules.splitlines() if not line.startswith("#")))
    assert len(asked) > 20
    optional = {"baton_router_requests_refused_total"}  # no reason until the first refusal
    assert asked - there - optional == set()


async def test_all_daemons_are_on_the_page_with_help_and_units(sim_fleet: Fleet) -> None:
    await used(sim_fleet)
    page = scrape(sim_fleet)
    daemons = set(
        re.findall(r'^process_open_fds\{service="(\w+)",daemon="(\w+)"\}', page, re.MULTILINE)
    )
    workers = {("prefill", "p0"), ("prefill", "p1"), ("decode", "d0"), ("decode", "d1")}
    assert daemons == workers | {("gateway", "g0"), ("router", "r0"), ("health", "h0")}
    families = list(text_string_to_metric_families(page))
    assert len({each.name for each in families}) == len(families)
    assert all(family.documentation for family in families)
    assert (
        'baton_gateway_key_tokens_total{service="gateway",daemon="g0",key="anonymous",model="baton-tiny"'
        in page
    )


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian: prometheus)"
)
async def test_promtool_finds_the_page_clean(sim_fleet: Fleet) -> None:
    await used(sim_fleet)
    done = promtool(scrape(sim_fleet))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
