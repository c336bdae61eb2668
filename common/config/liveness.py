"""`[router.liveness]`: when peers are doubted, given up and trusted again."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Milliseconds, Section


class LivenessConfig(Section, frozen=True):
    """When a router stops trusting a peer, and when it trusts it again. A worker silent for
    `suspect_share` of `router.worker_timeout_ms` gets nothing new; silent for all of it, or with an
    engine that made no step for twice its limit, it is ejected: its requests are given up. The
    limit of a busy engine's step is the larger of `stall_ms` and `stall_steps` times its own p99
    step (times `stall_ms` while that is unknown). Of a pool at most `eject_share_max`, but always
    one, are ejected so; a closed connection is no suspicion and knows no limit. A worker that was
    doubted must be sound for `proof_ms` before it gets work again, twice as long each time that it
    is doubted within `flap_window_ms`, at most `proof_ms_max`. `late_tick_ms`: a router that itself
    stood still for longer blames nobody. `gateway_grace_ms`: how long the requests of a gateway
    whose connection closed are kept for its return. `rebuild_ms`: a router that starts places
    nothing before all workers of the file have reported, or this time has passed. `deaths_max`: a
    request in flight when so many workers died has its prompt quarantined."""

    suspect_share: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    stall_ms: Annotated[float, Meta(ge=100)] = 1_000.0
    stall_steps: Annotated[float, Meta(ge=2)] = 10.0
    eject_share_max: Annotated[float, Meta(ge=0, le=1)] = 0.34
    proof_ms: Milliseconds = 1_000.0
    proof_ms_max: Milliseconds = 30_000.0
    flap_window_ms: Milliseconds = 60_000.0
    late_tick_ms: Annotated[float, Meta(ge=300)] = 1_000.0
    gateway_grace_ms: Milliseconds = 2_000.0
    rebuild_ms: Milliseconds = 2_000.0
    deaths_max: Annotated[int, Meta(ge=1)] = 2
