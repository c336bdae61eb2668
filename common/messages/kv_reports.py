"""The ticket of a KV handoff, and what workers report of handoffs; see the package for the
rules."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.messages.parts import Count, Number

PARTS_MAX = 64


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """The right to take one request's KV from P, once.

    The router makes it and sends it to P and D together. P and D each refuse a ticket whose
    incarnation is not their own.
    """

    #: 16 random bytes, for a single use.
    secret: bytes
    request_id: str
    attempt: int
    #: P's fingerprint, and D's too unless `canonical`.
    fingerprint: str
    prefill: str
    prefill_incarnation: str
    decode: str
    decode_incarnation: str
    #: P's, of all its ranks (`common.net.kv_address`).
    kv_address: str
    #: Milliseconds for which P may hold blocks for it, counted on P from arrival.
    lease_ms: float
    #: Whether the KV travels in the canonical form, because P and D lay it out differently, or have
    #: not the same drafter. Blocks are then counted in `CANONICAL_TOKENS` on both sides.
    canonical: bool = False
    #: The element type of KV on the wire, because P and D have different ones, and who has another
    #: one converts; only with `canonical`. Empty: it is that of both.
    element: str = ""
    #: Into how many equal ranges of heads the KV is cut, each of which travels by itself, because P
    #: and D split the heads over unlike numbers of ranks: a multiple of both; only with
    #: `canonical`. 1: from each rank of P to the same of D.
    parts: Annotated[int, Meta(ge=1, le=PARTS_MAX)] = 1


class KvSource(msgspec.Struct, frozen=True, kw_only=True):
    """A worker whose store has the beginning of a prompt, as far as the router knows."""

    name: str
    incarnation: str
    fingerprint: str
    #: As in `Ticket`.
    kv_address: str
    #: How many leading tokens of the prompt it has.
    tokens: Count


class KvHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A worker whose store gets copies of a stream's blocks while the stream runs elsewhere, or a
    pool."""

    name: str
    incarnation: str
    fingerprint: str
    #: As in `Ticket`.
    kv_address: str
    #: Whether blocks are of use there when the stream is over: it is a pool.
    lasting: bool = False
    #: Whether the stream is to go on there: its engine gets the blocks ahead, too.
    goes_on: bool = False


class KvCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far the copies of one stream's blocks are, as the worker that runs it knows."""

    request_id: str
    attempt: Count
    #: Name of the worker whose store gets them.
    holder: str
    #: Blocks of the stream that have filled.
    blocks: Count
    #: How many leading ones the holder has.
    held: Count


class KvReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one handoff moved, measured on D."""

    #: Blocks that arrived and were verified.
    blocks: Count = 0
    #: Whether all blocks that D wanted arrived and were verified; otherwise D computed the rest.
    complete: bool = False
    #: Messages with KV.
    messages: Count = 0
    #: Bytes of KV on the wire, without headers.
    payload_bytes: Count = 0
    #: Bytes of KV and headers on the wire.
    wire_bytes: Count = 0
    #: Milliseconds from sending KvReady to the first data.
    wait_ms: Number = 0.0
    #: Milliseconds from the first data to the last data verified.
    transfer_ms: Number = 0.0
    #: All requests for data after the first.
    retries: Count = 0
    #: Those of `retries` that followed damaged data.
    refetches: Count = 0
    #: Messages whose digest was not the expected one.
    digest_mismatches: Count = 0
    #: Bytes of payload that were sent before P's prefill ended (the overlap).
    early_bytes: Count = 0
    #: `fp8` if any message was compressed, else empty.
    compression: str = ""
    #: Bytes of KV before compression.
    raw_bytes: Count = 0
    #: As `Ticket.element`.
    element: str = ""
    #: Whether D's drafter has KV of its own, of which none came.
    drafter_cold: bool = False
    #: As in `Ticket`.
    canonical: bool = False


class KvCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's KV plane has counted since its engine started. `_in` counts what it received
    (as D), `_out` what it handed over (as P)."""

    handoffs_in: Count = 0
    handoffs_out: Count = 0
    bytes_in: Count = 0
    bytes_out: Count = 0
    #: Bytes of payload that were sent before their prefill had ended.
    early_bytes_out: Count = 0
    #: Requests for data after the first of each handoff.
    retries: Count = 0
    #: Those of `retries` that followed damaged data.
    refetches: Count = 0
    #: Messages whose digest was not the expected one.
    digest_mismatches: Count = 0
    #: Failed handoffs after which the engine computes the prompt itself.
    recomputes: Count = 0
    #: Handoffs whose lease ended before D took all blocks.
    leases_expired: Count = 0
    #: Handoffs that were given up by a client, a daemon or the other side.
    aborts: Count = 0
    #: Requests for KV that P refused.
    tickets_refused: Count = 0
    #: Duplicates and messages of an older transfer, incarnation or generation, dropped without
    #: effect.
    stale: Count = 0
    #: Connections that were refused: their peers did not prove to be of the fleet, said nothing in
    #: time, or were too many.
    links_refused: Count = 0
    #: Blocks in the store now; this one is no count.
    store_held: Count = 0
    #: Blocks that were copied to the store.
    store_written: Count = 0
    #: Blocks that the engine got out of the store.
    store_read: Count = 0
    #: Blocks that were found damaged in the store, dropped and computed again.
    store_damaged: Count = 0
    #: Blocks that the engine overwrote before they could be stored.
    store_skipped: Count = 0
    #: Blocks that the store dropped because their memory was needed.
    store_evicted: Count = 0
    #: Blocks that the store dropped because nobody used them for the time to live.
    store_expired: Count = 0
    #: The same of the store on disk: held now, and counts.
    store_disk_held: Count = 0
    store_disk_written: Count = 0
    store_disk_read: Count = 0
    store_disk_damaged: Count = 0
    #: Blocks that were dropped from memory before they could be written to the disk.
    store_disk_skipped: Count = 0
    store_disk_evicted: Count = 0
    store_disk_expired: Count = 0
    #: 1 once the disk has failed: it is not used any more until the worker restarts.
    store_disk_off: Count = 0
    #: How many blocks the store can hold in memory and on disk, and its time to live; no counts.
    store_slots: Count = 0
    store_disk_slots: Count = 0
    store_ttl_s: Count = 0
    #: Blocks that the engine got out of other workers' stores.
    store_pulled: Count = 0
    #: Blocks that other workers got out of the store.
    store_served: Count = 0
    #: Pulls from other workers' stores that failed, so that the engine computed the blocks.
    pulls_failed: Count = 0
    #: Blocks that the store got because another worker offered them.
    store_copied: Count = 0
    #: Offers of other workers whose blocks did not come: refused, lost or damaged.
    copies_failed: Count = 0
    #: Blocks that other holders have because they were offered here.
    store_offered: Count = 0
    #: Blocks that were not offered, or not taken, because one side was behind or had no room.
    offers_skipped: Count = 0
    #: Blocks that the engine got out of the store before the stream that goes on there came.
    store_ahead: Count = 0
    #: Blocks in the memory of the store that an operator keeps there now; no count.
    store_pinned: Count = 0
    #: Blocks that came to the memory of the store because their request would probably come, those
    #: of them that an engine then read, and those that were let go unread.
    prefetched: Count = 0
    prefetch_used: Count = 0
    prefetch_wasted: Count = 0
    #: Bytes of blocks that the disk of the store reads per second, over the latest reads; no count.
    #: 0: none was read yet.
    store_disk_bytes_per_s: Count = 0
    #: Blocks that were not prefetched, because there was no room before their request came.
    prefetch_skipped: Count = 0
    #: Requests that came before all of their blocks had.
    prefetch_late: Count = 0


class KvHold(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of this worker that wait for another one."""

    request_id: str
    attempt: Count
    #: Name of the other worker.
    peer: str
    #: `send` (P holds the blocks for D) or `receive` (D holds them for what P sends).
    side: str
    blocks: Count
    #: Bytes of KV over all layers.
    bytes: Count
    #: Milliseconds until the blocks are freed by themselves; on D the rest of the load timeout.
    lease_left_ms: Number
    #: Milliseconds for which they have been held.
    age_ms: Number
