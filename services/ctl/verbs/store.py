"""`baton ctl store`: what each worker keeps of KV for later prompts, in memory and on disk."""

from __future__ import annotations

from common.net.admin_rows import StoreRow
from services.ctl.table import rows, size

render = rows(
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
        "TTL": "ttl_s",
    },
    empty="no worker has a store, or none has reported yet; [kv.store] ram_mib turns it on",
    kind=StoreRow,
)
