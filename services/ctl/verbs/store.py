"""`baton ctl store`: what each worker keeps of KV for later prompts, in memory and on disk; what
was ordered of some of it."""

from __future__ import annotations

from typing import Any

from common.net.admin_rows import StoreOrderRow, StoreRow
from services.ctl.table import rows, size

_tiers = rows(
    {
        "WORKER": "worker",
        "TIER": "tier",
        "STATE": "state",
        "BLOCKS": lambda row: f"{row.blocks}/{row.blocks_max}",
        "BYTES": lambda row: f"{size(row.bytes)} of {size(row.bytes_max)}",
        "WRITTEN": "written",
        "HITS": "hits",
        "EVICTED": "evicted",
        "EXPIRED": "expired",
        "DAMAGED": "damaged",
        "SKIPPED": "skipped",
        "PINNED": "pinned",
        "TTL": "ttl_s",
    },
    empty="no worker has a store, or none has reported yet; [kv.store] ram_mib turns it on",
    kind=StoreRow,
)
_orders = rows(
    {
        "WORKER": "worker",
        "ORDER": "action",
        "BLOCKS": lambda row: f"{row.blocks}/{row.wanted}",
    },
    empty="no store has any of these blocks",
    kind=StoreOrderRow,
)


def render(result: Any) -> str:
    """Rows of one kind."""
    return _orders(result) if result and "action" in result[0] else _tiers(result)
