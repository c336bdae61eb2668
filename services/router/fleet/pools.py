"""Pools: which of them gets the KV of a prompt, and how KV lies that they hold.

All prompts with one beginning go to one pool, so that a block is held once, and what a pool has of
a prompt has no gap. The pool is chosen by rendezvous: each is ranked by a hash of its name and the
prompt's first block, so when one joins or leaves, only the prompts that it gains or loses change
their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from common.messages import KvHolder, Layout, Role
from services.router.placement.types import WorkerView
from services.router.records.worker import Worker


def pool_for(
    pools: Iterable[Worker], giver: WorkerView, prefix: Sequence[bytes]
) -> KvHolder | None:
    """The pool that gets what `giver` stores of the prompt with these names. None if no pool that
    is ready holds KV of its fingerprint, or if routers would not find the prompt again."""
    if not giver.pull_blocks or not prefix:
        return None
    fitting = [pool for pool in pools if pool.ready and pool.fingerprint == giver.fingerprint]
    chosen = max(fitting, key=lambda pool: _rank(pool, prefix[0]), default=None)
    if chosen is None:
        return None
    return KvHolder(
        name=chosen.name,
        incarnation=chosen.incarnation,
        fingerprint=chosen.fingerprint,
        kv_address=chosen.kv_address,
        lasting=True,
    )


def layout_of(workers: Iterable[Worker]) -> Layout | None:
    """That of the first worker that is ready and has a store for others; None while there is
    none."""
    for worker in workers:
        capacity = worker.capacity
        if worker.role is Role.POOL or not worker.ready:
            continue
        if capacity.pull_blocks and capacity.kv_layers:
            return Layout(
                worker=worker.name,
                fingerprint=worker.fingerprint,
                fingerprint_parts=worker.fingerprint_parts,
                block_tokens=capacity.block_tokens,
                block_bytes=capacity.kv_block_bytes,
                layers=capacity.kv_layers,
            )
    return None


def _rank(pool: Worker, first: bytes) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(first + pool.name.encode()), pool.name
