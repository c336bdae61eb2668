"""The settings of the router core: its section of the fleet file, and what it needs besides. They
do not change while it runs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from common.config import Config, RemotePrefill, RouterConfig
from common.messages import Role

IDLE_MARGIN_SECONDS = 2.0


class Settings(RouterConfig, frozen=True):
    """The defaults are those of a core that is driven without a fleet file."""

    #: Name and incarnation of this router.
    name: str = "router"
    incarnation: str = "0"
    #: How long P keeps KV that D does not fetch.
    lease_ms: float = 30_000.0
    #: How long a decode worker keeps the KV of a stream that goes on elsewhere.
    keep_seconds: float = 2.0
    #: Of which streams other workers get copies, as in `[kv.checkpoint]`.
    checkpoint: str = "none"
    #: As `[kv] copy_ahead_ms`, in seconds.
    copy_ahead_seconds: float = 0.0
    #: As in `[limits]`: bytes of KV that a request is promised at a time, by class; 0 = all.
    kv_budgets: tuple[int, ...] = (0, 0, 0)
    #: Seconds for which a decode worker has to report an engine without work before the router
    #: ends what it thinks the worker holds; longer than a handoff may take.
    idle_seconds: float = 17.0
    #: Seconds that the router waits after its start for the first reports of the `expected`
    #: workers before it places anything.
    rebuild_seconds: float = 0.0
    #: Names of the models that are served.
    models: tuple[str, ...] = ("model",)
    #: The model of each worker in the fleet file, by role and name.
    expected: Mapping[tuple[Role, str], str] = {}
    #: Decode workers of each model that stay awake; 1 of a model that is not named.
    floors: Mapping[str, int] = {}
    #: Those of them that are pooling models: they generate nothing, and their requests go to the
    #: worker that is loaded least, whatever the policy is.
    pooling: frozenset[str] = frozenset()
    #: Whether engines keep prefixes, so that placement can use them.
    prefixes: bool = True
    #: As in the section, with another default: one rule for prompts of all sizes.
    remote_prefill: RemotePrefill = "always"

    @property
    def alone(self) -> bool:
        """Whether no other router serves this fleet."""
        return not self.standby


def from_config(config: Config, name: str, incarnation: str) -> Settings:
    router = config.router
    return Settings(
        **msgspec.structs.asdict(router),
        name=name,
        incarnation=incarnation,
        lease_ms=config.kv.lease_ms,
        keep_seconds=config.kv.keep_ms / 1000,
        checkpoint=config.kv.checkpoint.policy,
        copy_ahead_seconds=config.kv.copy_ahead_ms / 1000,
        kv_budgets=config.limits.kv_budgets(),
        idle_seconds=config.kv.load_timeout_ms / 1000 + IDLE_MARGIN_SECONDS,
        rebuild_seconds=router.liveness.rebuild_ms / 1000,
        models=tuple(config.served),
        pooling=frozenset(name for name, model in config.served.items() if model.pools),
        floors={name: model.floor for name, model in config.served.items()},
        expected={
            (role, name): config.model_of(worker).served_name
            for role, workers in ((Role.PREFILL, config.prefill), (Role.DECODE, config.decode))
            for name, worker in workers.items()
        },
        prefixes=_keeps_prefixes(config),
    )


def _keeps_prefixes(config: Config) -> bool:
    """The simulated engine computes every prompt anew, whatever its configuration."""
    engines = [worker.engine for worker in (*config.prefill.values(), *config.decode.values())]
    return any(engine.kind == "vllm" and engine.prefix_caching for engine in engines)
