"""What a store holds, as vLLM's KV events, by which the daemon and then the router learn of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from common.kv.store.table import BlockName

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent

MEDIUM, ON_DISK = "STORE", "DISK"
"""The media of these events. The daemon knows the blocks in memory by the engine's own events, and
those on the disk by the names that come along, because no engine tells them after a restart."""


def store_events(
    changes: Mapping[BlockName, bool], on_disk: Mapping[BlockName, bytes | None] | None = None
) -> list[KVCacheEvent]:
    """`changes`: as `StoreTable.changes` returns them. `on_disk`: as `DiskStore.changes` does."""
    events: list[KVCacheEvent] = []
    if changes:
        held = {name: None for name, now_held in changes.items() if now_held}
        events += _events(MEDIUM, held, [name for name in changes if name not in held])
    if on_disk:
        named = {name: ours for name, ours in on_disk.items() if ours is not None}
        events += _events(ON_DISK, named, [name for name in on_disk if name not in named])
    return events


def _events(
    medium: str, held: Mapping[BlockName, bytes | None], gone: Sequence[BlockName]
) -> list[KVCacheEvent]:
    """`held`: with the names by which routers know the blocks, as far as these are told."""
    from vllm.distributed.kv_events import BlockRemoved, BlockStored
    from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

    theirs, lost = (
        [maybe_convert_block_hash(BlockHash(name.block_hash)) for name in names]
        for names in (held, gone)
    )
    events: list[KVCacheEvent] = []
    if lost:
        events.append(BlockRemoved(block_hashes=lost, medium=medium))
    if theirs:
        events.append(
            BlockStored(
                block_hashes=theirs,
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=medium,
                lora_name=None,
                extra_keys=[(ours,) if ours else None for ours in held.values()],
            )
        )
    return events
