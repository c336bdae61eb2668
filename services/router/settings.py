"""The settings of the router core, with their units; they do not change while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.config import (
    AdmissionConfig,
    Config,
    DegradationConfig,
    LivenessConfig,
    Mode,
    RemotePrefill,
)
from common.messages import Role

IDLE_MARGIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    #: Name and incarnation of this router.
    name: str = "router"
    incarnation: str = "0"
    #: Attempts that may be on workers at once; 0 = as many as the ready decode workers have slots.
    max_active: int = 0
    #: Attempts that may wait in the queue.
    max_queue: int = 1024
    #: The service level objective for the time to first token; 0 = there is none.
    ttft_slo_ms: float = 0.0
    #: Bytes of encoded prompts that may wait in the queue.
    queue_bytes_max: int = 256 << 20
    #: Share of a worker's KV tokens that may be promised.
    kv_grant_max: float = 0.95
    #: Seconds of silence after which a peer is given up.
    worker_timeout: float = 3.0
    #: Attempts that are remembered after their end.
    history: int = 1024
    #: How long P keeps KV that D does not fetch.
    lease_ms: float = 30_000.0
    #: Seconds for which a decode worker has to report an engine without work before the router
    #: ends what it thinks the worker holds; longer than a handoff may take.
    idle_seconds: float = 17.0
    #: Seconds that the router waits after its start for the first reports of the `expected`
    #: workers before it places anything.
    rebuild_seconds: float = 0.0
    #: Roles and names of the workers in the fleet file.
    expected: frozenset[tuple[Role, str]] = frozenset()
    #: Whether no other router serves this fleet.
    alone: bool = True
    admission: AdmissionConfig = field(default_factory=AdmissionConfig)
    #: Whether engines keep prefixes, so that placement can use them.
    prefixes: bool = True
    #: A name in `placement/policies/registry.py`.
    policy: str = "cost"
    mode: Mode = "disaggregated"
    remote_prefill: RemotePrefill = "always"
    liveness: LivenessConfig = field(default_factory=LivenessConfig)
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
        liveness=router.liveness,
        degradation=router.degradation,
        idle_seconds=config.kv.load_timeout_ms / 1000 + IDLE_MARGIN_SECONDS,
        admission=router.admission,
        prefixes=_keeps_prefixes(config),
        policy=router.policy,
        mode=router.mode,
        remote_prefill=router.remote_prefill,
    )


def _keeps_prefixes(config: Config) -> bool:
    """The simulated engine computes every prompt anew, whatever its configuration."""
    engines = [worker.engine for worker in (*config.prefill.values(), *config.decode.values())]
    return any(engine.kind == "vllm" and engine.prefix_caching for engine in engines)
