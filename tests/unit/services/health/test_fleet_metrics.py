"""The router's `kv` answer as metrics: right names and values, and nothing stale."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from services.health.fleet_metrics import COUNTS, FleetMetrics

KV: dict[str, Any] = {
    "holds": [],
    "holds_total": 2,
    "bytes_total": 4096,
    "orphans": 1,
    "workers": [
        {"name": "p0", "role": "prefill", "holds": 2, "counts": {"handoffs_out": 7}},
        {"name": "d0", "role": "decode", "holds": 0, "counts": {}},
    ],
}


def scraped(kv: dict[str, Any] | None) -> str:
    registry, metrics = CollectorRegistry(), FleetMetrics()
    registry.register(metrics)
    metrics.kv = kv
    return generate_latest(registry).decode()


def test_holds_orphans_and_counts() -> None:
    text = scraped(KV)
    assert 'baton_kv_holds{role="prefill",worker="p0"} 2.0' in text
    assert "baton_kv_orphan_holds 1.0" in text
    assert "baton_kv_held_bytes 4096.0" in text
    assert 'baton_kv_handoffs_sent_total{worker="p0"} 7.0' in text
    assert 'baton_kv_handoffs_sent_total{worker="d0"}' not in text
    assert text.count("# HELP") == len(COUNTS) + 3


def test_without_an_answer_there_is_nothing() -> None:
    assert scraped(None) == ""
