"""What a store holds, as vLLM's KV events, by which the daemon and then the router learn of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from common.kv.store.table import BlockName

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent

MEDIUM = "STORE"
"""The medium of these events; the daemon knows the blocks by the engine's own events."""


def store_events(changes: Mapping[BlockName, bool]) -> list[KVCacheEvent]:
    """`changes`: as `StoreTable.changes` returns them."""
    if not changes:
        return []
    from vllm.distributed.kv_events import BlockRemoved, BlockStored
    from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

    held, gone = (
        [
            maybe_convert_block_hash(BlockHash(name.block_hash))
            for name, now_held in changes.items()
            if now_held is wanted
        ]
        for wanted in (True, False)
    )
    events: list[KVCacheEvent] = []
    if gone:
        events.append(BlockRemoved(block_hashes=gone, medium=MEDIUM))
    if held:
        events.append(
            BlockStored(
                block_hashes=held,
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=MEDIUM,
                lora_name=None,
            )
        )
    return events
