"""Opens the engine that a worker's configuration names. Blocking, and before any event loop."""

from __future__ import annotations

from collections.abc import Callable

from common.config import Config
from common.engine.port import Engine
from common.messages import Role


def _silent(_text: str) -> None:
    """No one listens to the progress."""


def open_engine(
    config: Config,
    role: Role,
    name: str,
    incarnation: str,
    progress: Callable[[str], None] = _silent,
) -> Engine:
    """Returns when the engine can serve. Raises BatonError with one clear sentence."""
    if config.worker(role, name).engine.kind == "sim":
        from common.engine.sim import open_sim

        return open_sim(config, role, name, incarnation)
    from common.engine.vllm_open import open_vllm

    return open_vllm(config, role, name, incarnation, progress)
