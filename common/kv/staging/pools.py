"""The staging memory of an engine process, by what its KV is on."""

from __future__ import annotations

import structlog

from common.config import KvConfig
from common.errors import BatonError, Code
from common.kv.layout import DeviceCopies, Geometry
from common.kv.plan import wire_message_bytes
from common.kv.staging.pool import CardPool, Pools, StagingPool
from common.kv.staging.shared_segment import shares_memory


def staging_pools(
    config: KvConfig, geometry: Geometry, device: DeviceCopies | None
) -> tuple[Pools, Pools]:
    """For what is sent, and for what is received. `device`: of the engine's memory; the card
    reaches all buffers, and some are on it. Raises BatonError(CONFIG_INVALID) if it has no room for
    what it needs in any case."""
    one, total = geometry.block_bytes, config.staging_mib << 20
    sends, shared = max(config.message_bytes, one), shares_memory(config.transports)
    receives = max(wire_message_bytes(config.message_bytes), one)
    if device is not None and not device.reserve(sends):
        raise BatonError(
            Code.CONFIG_INVALID,
            f"the GPU has no room for two messages of [kv] message_bytes = {sends}; lower "
            "gpu_memory_utilization",
        )
    return (
        Pools(
            StagingPool(sends, total, shared=shared, device=device), _on_card(config, one, device)
        ),
        Pools(StagingPool(receives, total, device=device), _on_card(config, one, device)),
    )


def _on_card(config: KvConfig, block_bytes: int, device: DeviceCopies | None) -> CardPool | None:
    if device is None or config.path == "pinned" or config.direct_message_bytes < block_bytes:
        return None
    memory = device.staging(config.device_staging_mib << 20)
    if memory is None:
        sentence = (
            f"the GPU has no room for [kv] device_staging_mib = {config.device_staging_mib}, so KV "
            "goes through page-locked host memory; lower gpu_memory_utilization"
        )
        structlog.get_logger("baton").warning("kv.no_staging", sentence=sentence)
    return CardPool(memory) if memory is not None else None
