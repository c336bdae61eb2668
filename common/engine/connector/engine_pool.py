"""vLLM's blocks, for what enters its prefix cache without a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import BlockHash, make_block_hash_with_group_id

from common.kv.store.table import BlockName

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class EnginePool:
    """It is used on the engine's thread, between the steps of its scheduler.

    Source: `BlockPool` of vLLM 0.32, which a connector gets by `bind_gpu_block_pool`."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def __contains__(self, name: object) -> bool:
        """Whether the prefix cache has this block."""
        assert isinstance(name, BlockName)
        return self._pool.get_cached_block(BlockHash(name.block_hash), [name.group]) is not None

    @property
    def free(self) -> int:
        """Blocks that no request has. What the prefix cache keeps in them goes when they are
        taken."""
        free: int = self._pool.get_num_free_blocks()
        return free

    def take(self, count: int) -> list[int]:
        """So many of the free blocks, those first whose content was used least recently."""
        return [block.block_id for block in self._pool.get_new_blocks(count)]

    def give_back(self, held: Mapping[int, BlockName | None]) -> None:
        """These blocks, which were taken, are free again. Those with a name hold its KV, and can be
        found until they are taken. In the order of a prompt, whose end goes first."""
        for block_id, name in held.items():
            if name is not None and name not in self:
                key = make_block_hash_with_group_id(BlockHash(name.block_hash), name.group)
                self._pool.blocks[block_id].set_block_hash(key)
                self._pool.cached_block_hash_to_block.insert(key, self._pool.blocks[block_id])
        self._pool.free_blocks([self._pool.blocks[block_id] for block_id in reversed(held)])
