"""Counters of the handoffs and the store of one worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from common.errors import Code
from common.messages import KvCounts, KvReport


@dataclass(slots=True)
class HandoffCounters:
    """Counts since the start of the process; the fields are those of `KvCounts`."""

    handoffs_in: int = 0
    handoffs_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    early_bytes_out: int = 0
    retries: int = 0
    refetches: int = 0
    digest_mismatches: int = 0
    recomputes: int = 0
    leases_expired: int = 0
    aborts: int = 0
    tickets_refused: int = 0
    stale: int = 0
    links_refused: int = 0
    store_held: int = 0
    store_written: int = 0
    store_read: int = 0
    store_damaged: int = 0
    store_skipped: int = 0
    store_evicted: int = 0
    store_expired: int = 0
    store_disk_held: int = 0
    store_disk_written: int = 0
    store_disk_read: int = 0
    store_disk_damaged: int = 0
    store_disk_skipped: int = 0
    store_disk_evicted: int = 0
    store_disk_expired: int = 0
    store_disk_off: int = 0
    store_slots: int = 0
    store_disk_slots: int = 0
    store_ttl_s: int = 0
    store_pulled: int = 0
    store_served: int = 0
    pulls_failed: int = 0
    store_copied: int = 0
    copies_failed: int = 0
    store_offered: int = 0
    offers_skipped: int = 0
    store_ahead: int = 0
    store_pinned: int = 0
    store_disk_bytes_per_s: int = 0
    prefetched: int = 0
    prefetch_used: int = 0
    prefetch_wasted: int = 0
    prefetch_skipped: int = 0
    prefetch_late: int = 0

    def count_received(self, report: KvReport, error: str, *, pull: bool = False) -> None:
        """A receive ended, of a handoff or of a `pull` from a store."""
        self.count_transfer(report)
        if pull:
            self.store_pulled += 0 if error else report.blocks
            self.pulls_failed += bool(error) and error != Code.CANCELLED
        elif not error:
            self.handoffs_in += 1
        elif error == Code.CANCELLED:
            self.aborts += 1
        else:
            self.recomputes += 1

    def count_copied(self, report: KvReport, error: str) -> None:
        """A receive ended of blocks that another worker had offered."""
        self.count_transfer(report)
        self.store_copied += 0 if error else report.blocks
        self.copies_failed += bool(error) and error != Code.CANCELLED

    def count_transfer(self, report: KvReport) -> None:
        """A receive ended, of whatever."""
        self.bytes_in += report.payload_bytes
        self.retries += report.retries - report.refetches
        self.refetches += report.refetches
        self.digest_mismatches += report.digest_mismatches

    def count_sent(self, report: KvReport, error: str) -> None:
        """A send ended on P. An expired lease was counted as such when it expired."""
        self.bytes_out += report.payload_bytes
        self.early_bytes_out += report.early_bytes
        if not error:
            self.handoffs_out += 1
        elif error == Code.CANCELLED:
            self.aborts += 1

    def snapshot(self) -> KvCounts:
        """For the wire."""
        return KvCounts(**asdict(self))
