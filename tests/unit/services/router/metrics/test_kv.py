"""The router's `kv` answer as metrics: right names and values, and nothing stale."""

from __future__ import annotations

import msgspec

from common.messages import KvCounts
from common.net.admin_rows import KvLedger, KvWorkerRow
from services.router.metrics.kv import COUNTS, STORE_COUNTS, kv_metrics
from tests.unit.services.router.scraped import scraped

KV = KvLedger(
    holds=(),
    holds_total=2,
    bytes_total=4096,
    orphans=1,
    workers=(
        KvWorkerRow(
            name="p0",
            role="prefill",
            holds=2,
            counts=msgspec.structs.asdict(
                KvCounts(
                    handoffs_out=7,
                    store_held=3,
                    store_slots=8,
                    store_disk_held=5,
                    store_disk_slots=9,
                    store_disk_read=6,
                    store_disk_off=1,
                    store_pinned=2,
                )
            ),
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
    assert 'baton_kv_store_blocks{tier="ram",worker="p0"} 3.0' in text
    assert 'baton_kv_store_blocks{tier="disk",worker="p0"} 5.0' in text
    assert 'baton_kv_store_blocks_max{tier="disk",worker="p0"} 9.0' in text
    assert 'baton_kv_store_read_total{tier="disk",worker="p0"} 6.0' in text
    assert 'baton_kv_store_read_total{tier="ram",worker="p0"} 0.0' in text
    assert 'baton_kv_store_disk_failed{worker="p0"} 1.0' in text
    assert 'baton_kv_store_pinned_blocks{worker="p0"} 2.0' in text
    assert 'baton_kv_store_blocks{tier="ram",worker="d0"}' not in text, "it has none"
    assert text.count("# HELP") == len(COUNTS) + len(STORE_COUNTS) + 7
