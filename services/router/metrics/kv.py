"""The router's `kv` answer as Prometheus metrics: KV held for other workers, and what KV planes
counted."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from common.net.admin_rows import KvLedger

COUNTS = {
    "handoffs_in": ("handoffs_received", "KV handoffs taken by this worker"),
    "handoffs_out": ("handoffs_sent", "KV handoffs given by this worker"),
    "bytes_in": ("received_bytes", "KV bytes verified by this worker"),
    "bytes_out": ("sent_bytes", "KV bytes sent by this worker"),
    "early_bytes_out": ("overlapped_bytes", "KV bytes sent before their prefill had ended"),
    "retries": ("retries", "Handoffs tried again after a lost connection"),
    "refetches": ("refetches", "Handoffs fetched again after damage"),
    "digest_mismatches": ("digest_mismatches", "KV messages whose digest did not match"),
    "recomputes": ("recomputes", "Handoffs that failed, so that the prompt was computed on decode"),
    "leases_expired": ("leases_expired", "Leases on KV that nobody took in time"),
    "aborts": ("aborts", "Handoffs that were given up"),
    "tickets_refused": ("tickets_refused", "Requests for KV that were refused"),
    "stale": ("stale_messages", "KV messages of an older transfer, dropped"),
    "links_refused": ("links_refused", "Connections of KV that were refused"),
    "store_pulled": ("store_pulled", "KV blocks that came out of other workers' stores"),
    "store_served": ("store_served", "KV blocks that other workers got out of the store"),
    "store_copied": ("store_copied", "KV blocks that came because another worker offered them"),
    "copies_failed": ("store_copies_failed", "Offers of other workers whose blocks did not come"),
    "store_offered": (
        "store_offered",
        "KV blocks that other holders have as offered by this worker",
    ),
    "offers_skipped": ("store_offers_skipped", "KV blocks that were not offered, or not taken"),
    "store_ahead": (
        "store_loaded_ahead",
        "KV blocks that the engine got from the store before the stream that goes on there came",
    ),
    "prefetched": ("store_prefetched", "KV blocks brought to memory before their request came"),
    "prefetch_used": ("store_prefetch_used", "Prefetched KV blocks that the engine then read"),
    "prefetch_wasted": ("store_prefetch_wasted", "Prefetched KV blocks that nobody read in time"),
    "prefetch_skipped": ("store_prefetch_skipped", "KV blocks not prefetched for want of room"),
    "prefetch_late": ("store_prefetch_late", "Requests that came before their prefetch had ended"),
    "pulls_failed": ("store_pulls_failed", "Pulls that failed, so that the prompt was computed"),
}
STORE_COUNTS = {
    "written": "KV blocks copied to this tier of the store",
    "read": "KV blocks that the engine got out of this tier",
    "damaged": "KV blocks found damaged in this tier",
    "skipped": "KV blocks overwritten before they could be copied to this tier",
    "evicted": "KV blocks dropped from this tier for want of room",
    "expired": "KV blocks dropped from this tier because unused",
}
STORE_TIERS = {"ram": "store_", "disk": "store_disk_"}


def kv_metrics(kv: KvLedger) -> Iterator[Metric]:
    """`kv`: the answer of the verb."""
    yield from _holds(kv)
    yield from _handoffs(kv)
    yield from _stored(kv)


def _handoffs(kv: KvLedger) -> Iterator[Metric]:
    for field, (name, help_) in COUNTS.items():
        family = CounterMetricFamily(f"baton_kv_{name}", help_, labels=["worker"])
        for worker in kv.workers:
            if field in worker.counts:
                family.add_metric([worker.name], worker.counts[field])
        yield family


def _stored(kv: KvLedger) -> Iterator[Metric]:
    labels = ["worker", "tier"]
    held = GaugeMetricFamily("baton_kv_store_blocks", "KV blocks in the store", labels=labels)
    most = GaugeMetricFamily("baton_kv_store_blocks_max", "Room in the store", labels=labels)
    counts = {
        field: CounterMetricFamily(f"baton_kv_store_{field}", help_, labels=labels)
        for field, help_ in STORE_COUNTS.items()
    }
    pinned = GaugeMetricFamily(
        "baton_kv_store_pinned_blocks",
        "KV blocks that an operator keeps in the memory of the store",
        labels=["worker"],
    )
    failed = GaugeMetricFamily(
        "baton_kv_store_disk_failed",
        "Whether the disk of the store could not be used, and is not until the worker restarts",
        labels=["worker"],
    )
    for worker in kv.workers:
        failed.add_metric([worker.name], worker.counts.get("store_disk_off", 0))
        pinned.add_metric([worker.name], worker.counts.get("store_pinned", 0))
        for tier, prefix in STORE_TIERS.items():
            if worker.counts.get(f"{prefix}slots"):
                at = [worker.name, tier]
                held.add_metric(at, worker.counts[f"{prefix}held"])
                most.add_metric(at, worker.counts[f"{prefix}slots"])
                for field, family in counts.items():
                    family.add_metric(at, worker.counts[f"{prefix}{field}"])
    yield from (held, most, failed, pinned, *counts.values())


def _holds(kv: KvLedger) -> Iterator[Metric]:
    holds = GaugeMetricFamily(
        "baton_kv_holds", "Holds of KV for another worker", labels=["worker", "role"]
    )
    for worker in kv.workers:
        holds.add_metric([worker.name, worker.role], worker.holds)
    yield holds
    yield GaugeMetricFamily(
        "baton_kv_held_bytes", "Bytes of KV held for another worker", value=kv.bytes_total
    )
    yield GaugeMetricFamily(
        "baton_kv_orphan_holds",
        "Holds whose request is over: 0, or KV leaks until their leases end",
        value=kv.orphans,
    )
