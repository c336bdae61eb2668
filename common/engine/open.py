"""Opens the engine that a worker's configuration names."""

from __future__ import annotations

from collections.abc import Callable

from common.config import Config
from common.engine.port import Engine
from common.messages import Role


def _silent(_text: str) -> None:
    """Discards reports of progress."""


def open_engine(
    config: Config,
    role: Role,
    name: str,
    incarnation: str,
    progress: Callable[[str], None] = _silent,
) -> Engine:
    """Blocks until the engine can serve; it must be called before any event loop runs. `progress`
    gets what is being done. Raises BatonError with one sentence."""
    if config.worker(role, name).engine.kind == "sim":
        from common.engine.sim.engine import open_sim

        return open_sim(config, role, name, incarnation)
    if config.model.pools:
        from common.engine.vllm_pooling import open_pooling

        return open_pooling(config, role, name, progress)
    from common.engine.vllm.open import open_vllm

    return open_vllm(config, role, name, incarnation, progress)
