"""`baton ctl ready [WORKER...]`: can the fleet serve, or do these workers, as an exit status.

For scripts and health checks. It is no verb of the router: it judges what `status` and `workers`
say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Ask = Callable[[str], Any]
"""From a verb to its result. Raises BatonError."""


def ready(ask: Ask, workers: tuple[str, ...]) -> tuple[bool, str]:
    """Whether, and one sentence."""
    if not workers:
        status = ask("status")
        return bool(status["ready"]), "it can serve" if status["ready"] else status["reason"]
    states = {worker["name"]: worker["state"] for worker in ask("workers")}
    missing = [name for name in workers if states.get(name) != "ready"]
    if not missing:
        return True, f"{', '.join(workers)}: ready"
    return False, ", ".join(f"{name}: {states.get(name, 'not here')}" for name in missing)
