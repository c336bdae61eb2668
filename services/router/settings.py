"""What the router core is told once: limits with their units."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.config import AdmissionConfig, Config, DegradationConfig, Mode, RemotePrefill
from common.messages import Role
from services.router import liveness
from services.router.liveness import Liveness

IDLE_MARGIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`max_active`: requests placed at once, 0 = what the ready decode workers' slots allow.
    `kv_grant_max`: share of a worker's KV tokens that may be promised. `idle_seconds`: how long a
    decode worker must report an empty engine before what the router thinks it holds is given up;
    longer than a handoff may last. `policy`: a name in `policies/registry.py`.
    `prefixes`: an engine keeps prefixes, so that it is worth knowing who has which.
    `rebuild_seconds`: after its start, how long it waits for the first reports of the `expected`
    workers before it places. `alone`: no other router serves this fleet."""

    name: str = "router"
    incarnation: str = "0"
    max_active: int = 0
    max_queue: int = 1024
    ttft_slo_ms: float = 0.0
    queue_bytes_max: int = 256 << 20
    kv_grant_max: float = 0.95
    worker_timeout: float = 3.0
    history: int = 1024
    lease_ms: float = 30_000.0
    idle_seconds: float = 17.0
    rebuild_seconds: float = 0.0
    expected: frozenset[tuple[Role, str]] = frozenset()
    alone: bool = True
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    prefixes: bool = True
    policy: str = "cost"
    mode: Mode = "disaggregated"
    remote_prefill: RemotePrefill = "always"
    liveness: Liveness = field(default_factory=Liveness)
    degradation: DegradationConfig = field(default_factory=DegradationConfig)


def from_config(config: Config, name: str, incarnation: str) -> Settings:
    router = config.router
    return Settings(
        name=name,
        incarnation=incarnation,
        max_active=router.max_active,
        max_queue=router.max_queue,
        ttft_slo_ms=router.ttft_slo_ms,
        queue_bytes_max=router.queue_bytes_max,
        kv_grant_max=router.kv_grant_max,
        worker_timeout=router.worker_timeout_ms / 1000,
        history=router.history,
        lease_ms=config.kv.lease_ms,
        alone=not router.standby,
        rebuild_seconds=router.liveness.rebuild_ms / 1000,
        expected=frozenset(
            [(Role.PREFILL, name) for name in config.prefill]
            + [(Role.DECODE, name) for name in config.decode]
        ),
        liveness=liveness.from_config(config),
        degradation=router.degradation,
        idle_seconds=config.kv.load_timeout_ms / 1000 + IDLE_MARGIN_SECONDS,
        admission=router.admission,
        prefixes=_keeps_prefixes(config),
        policy=router.policy,
        mode=router.mode,
        remote_prefill=router.remote_prefill,
    )


def _keeps_prefixes(config: Config) -> bool:
    """The simulated engine computes every prompt anew."""
    engines = [worker.engine for worker in (*config.prefill.values(), *config.decode.values())]
    return any(engine.kind == "vllm" and engine.prefix_caching for engine in engines)
