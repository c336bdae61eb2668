"""What an engine's store consists of, by its configuration and its KV cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from common.blocks import KvGroup, keeps_part
from common.clock import SystemClock
from common.config import StoreConfig
from common.engine.connector.memory import block_bytes
from common.engine.connector.setup import Setup
from common.engine.connector.store import StoreScheduler
from common.kv.store.disk import DiskPlace
from common.kv.store.disk_plan import DiskIndex, DiskStore, disk_slots
from common.kv.store.record import record_key
from common.kv.store.results import StoreSize
from common.kv.store.sealing import sealed_for, secret_of
from common.kv.store.table import StoreTable
from common.telemetry.log import Logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def why_no_store(made: VllmConfig, groups: Sequence[KvGroup]) -> str:
    """Why this engine cannot have a store; empty if it can."""
    if len(groups) > 1 or keeps_part(groups):
        return "some layers of this model keep a part of the tokens only"
    if made.device_config.device_type not in {"cpu", "cuda"}:
        return f"KV on {made.device_config.device_type} is not stored"
    if made.speculative_config is not None and made.speculative_config.uses_draft_kv_cache():
        return "the drafter has KV of its own in each block"
    if not made.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    return ""


def store_slots(config: StoreConfig, block_bytes: int, ranks: int) -> int:
    """How many blocks the arena of each rank holds. `block_bytes`: of one rank."""
    return (config.ram_mib << 20) // (block_bytes * ranks)


def store_size(
    made: VllmConfig,
    cache: KVCacheConfig,
    groups: Sequence[KvGroup],
    setup: Setup,
    rank: int,
) -> StoreSize | None:
    """The store of one rank; None without one. Raises BatonError for a key that cannot be used."""
    config = setup.kv.store
    if not config.ram_mib or why_no_store(made, groups):
        return None
    ranks, one = made.parallel_config.tensor_parallel_size, block_bytes(cache)
    slots, on_disk = store_slots(config, one, ranks), disk_slots(config, one, ranks)
    if not slots:
        return None
    if not on_disk:
        return StoreSize(slots, config.ttl_s)
    hashes = made.cache_config.prefix_caching_hash_algo
    tokens = [group.block_tokens for group in groups]
    secret = secret_of(config)
    form = one, tokens, hashes, ranks, rank, *filter(None, [sealed_for(secret)])
    key = record_key(setup.fingerprint, *form)
    folder = Path(config.path) / f"{setup.name}.{rank}"
    place = DiskPlace(folder, key, on_disk, config.disk_write_mib_s * (1 << 20), secret)
    return StoreSize(slots, config.ttl_s, place)


def make_store(
    made: VllmConfig,
    cache: KVCacheConfig,
    groups: Sequence[KvGroup],
    setup: Setup,
    share: Callable[[StoreTable, StoreTable | None], bool],
) -> StoreScheduler | None:
    """None, with a line in the log, if the store is asked for and cannot be had. `share` gives the
    tables of memory and disk to the KV thread, out of which other workers may pull; False if that
    cannot be."""
    config = setup.kv.store
    if not config.ram_mib:
        return None
    ranks, one = made.parallel_config.tensor_parallel_size, block_bytes(cache)
    sizes = [store_size(made, cache, groups, setup, rank) for rank in range(ranks)]
    held = [size for size in sizes if size is not None]
    log: Logger = structlog.get_logger("baton")
    if not held:
        why = why_no_store(made, groups) or "[kv.store] ram_mib holds no block"
        log.warning("store.off", sentence=f"KV of ended requests is not stored: {why}")
        return None
    slots, places = held[0].slots, [size.disk for size in held if size.disk is not None]
    on_disk = places[0].slots if places else 0
    sentence = f"the KV of {slots} blocks is stored in memory, and of {on_disk} on disk"
    log.info("store.on", sentence=sentence, blocks=slots, disk_blocks=on_disk)
    part = config.tenant_share
    table = StoreTable(slots, config.ttl_s, ranks, threading.RLock(), share=part)
    backlog = (config.backlog_mib << 20) // one
    clock, disk, below = SystemClock(), None, None
    if places:
        index = DiskIndex([place.segments(one) for place in places])
        below = StoreTable(on_disk, config.ttl_s, ranks, threading.RLock(), share=part)
        disk = DiskStore(table, below, index, backlog // ranks, config.ttl_s, clock)
    names_alike = made.cache_config.prefix_caching_hash_algo.startswith("sha256")
    pulls = config.pull and names_alike and share(table, below)
    return StoreScheduler(
        table,
        groups[0].block_tokens,
        backlog // ranks,
        clock.monotonic,
        disk,
        fingerprint=setup.fingerprint if pulls else "",
    )
