"""Decides when an engine whose process still lives counts as hung. Pure.

A hung engine makes no step, or does not answer a probe (`common.engine.probe`), while its daemon
beats. The router ejects such a worker much sooner (`router.liveness`); the daemon ends so that a
supervisor starts both anew. The limit is longer while nothing runs, because requests that wait for
KV from another worker make no steps for as long as a handoff may take. Probes are answered at any
time.
"""

from __future__ import annotations

from common.messages import Load

#: Multiple of the engine's own p99 step below which a step is not too long.
STEPS = 20.0


def why_hung(load: Load, hang_ms: float, load_timeout_ms: float, *, ran: bool) -> str:
    """Why this engine counts as hung, as one sentence; empty while it does not. `ran` tells whether
    a sequence ran when the current step began; it may have been taken away since."""
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
