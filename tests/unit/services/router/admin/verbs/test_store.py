"""`store`: a row for each tier that a worker has."""

from __future__ import annotations

import msgspec

from common.messages import KvCounts
from common.net.admin_rows import StoreRow
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.admin.verbs import store
from tests.unit.services.router.rig import Rig

LIST: dict[str, Value] = {"action": "list", "worker": ""}
COUNTS = KvCounts(
    store_held=3,
    store_slots=8,
    store_written=7,
    store_read=2,
    store_evicted=4,
    store_ttl_s=300,
    store_disk_held=5,
    store_disk_slots=9,
    store_disk_read=6,
    store_disk_damaged=1,
    store_pinned=2,
)


def listed(rig: Rig, **args: Value) -> list[StoreRow]:
    """As a client of the admin socket decodes them."""
    told = store.run(View(rig.core.shared, rig.now, {}), LIST | args)
    return msgspec.convert(msgspec.to_builtins(told), list[StoreRow])


def test_each_tier_has_a_row_in_blocks_and_bytes(rig: Rig) -> None:
    tables = rig.core.tables
    (p0,) = [worker for worker in tables.workers.values() if worker.name == "p0"]
    p0.kv_counts = COUNTS
    block = p0.capacity.kv_block_bytes
    ram, disk = listed(rig)
    assert (ram.worker, ram.role, ram.tier, ram.state) == ("p0", "prefill", "ram", "on")
    assert (ram.blocks, ram.blocks_max, ram.bytes, ram.bytes_max) == (3, 8, 3 * block, 8 * block)
    assert (ram.written, ram.hits, ram.evicted, ram.ttl_s) == (7, 2, 4, 300)
    assert (ram.pinned, disk.pinned) == (2, 0)
    assert (disk.tier, disk.state, disk.blocks, disk.blocks_max) == ("disk", "on", 5, 9)
    assert (disk.hits, disk.damaged, disk.bytes) == (6, 1, 5 * block)
    assert listed(rig, worker="d0") == []


def test_a_failed_disk_is_told(rig: Rig) -> None:
    tables = rig.core.tables
    for worker in tables.workers.values():
        worker.kv_counts = KvCounts(store_disk_slots=9, store_disk_off=1)
    rows = listed(rig)
    assert {row.state for row in rows} == {"failed"}
    assert [row.worker for row in rows] == sorted(row.worker for row in rows)
