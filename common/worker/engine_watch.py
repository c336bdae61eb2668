"""When an engine that is not dead is as good as dead: pure.

Its process lives and its daemon beats, but no step comes, or no answer to a question
(`common.engine.probe`). The router has given it up long before (`router.liveness`); the daemon ends
so that a supervisor starts both anew. Patience is longer while nothing runs: what waits for KV from
elsewhere makes no steps for as long as a handoff may take. Questions are answered at any time.
"""

from __future__ import annotations

from common.messages import Load

STEPS = 20.0


def objection(load: Load, hang_ms: float, load_timeout_ms: float, *, ran: bool) -> str:
    """Why this engine counts as hung, as one sentence; empty while it does not. `ran`: something
    ran when the step that does not end began, though it may have been taken elsewhere since."""
    limit = max(hang_ms, STEPS * load.step_ms_p99)
    if load.silent_ms > limit:
        return (
            f"the engine has {load.running} requests and did not answer a question for "
            f"{load.silent_ms / 1000:.1f} s"
        )
    if not (ran or load.running):
        limit += load_timeout_ms
    if load.step_age_ms <= limit:
        return ""
    return (
        f"the engine has work ({load.running} running, {load.waiting} waiting) and made no step "
        f"for {load.step_age_ms / 1000:.1f} s"
    )
