"""The router's `kv` answer as metrics: right names and values, and nothing stale."""

from __future__ import annotations

from common.net.admin_rows import KvLedger, KvWorkerRow
from services.router.metrics.kv import COUNTS, kv_metrics
from tests.unit.services.router.scraped import scraped

KV = KvLedger(
    holds=(),
    holds_total=2,
    bytes_total=4096,
    orphans=1,
    workers=(
        KvWorkerRow(
            name="p0", role="prefill", holds=2, counts={"handoffs_out": 7, "store_held": 3}
        ),
        KvWorkerRow(name="d0", role="decode", holds=0, counts={}),
    ),
)


def test_holds_orphans_and_counts() -> None:
    text = scraped(kv_metrics(KV))
    assert 'baton_kv_holds{role="prefill",worker="p0"} 2.0' in text
    assert "baton_kv_orphan_holds 1.0" in text
    assert "baton_kv_held_bytes 4096.0" in text
    assert 'baton_kv_handoffs_sent_total{worker="p0"} 7.0' in text
    assert 'baton_kv_handoffs_sent_total{worker="d0"}' not in text
    assert 'baton_kv_store_blocks{worker="p0"} 3.0' in text
    assert text.count("# HELP") == len(COUNTS) + 4
