"""When a worker is suspected and when it is trusted again: the limits, and pure questions of them.

There are two reasons for suspicion. Silence: no message came for a while. A stalled engine: the
worker's daemon beats and reports that its engine, which has requests, makes no step. A suspected
worker gets nothing new; if the fault lasts, the worker is ejected. It is trusted again after a
probation without a fault, which gets longer with each flap.
"""

from __future__ import annotations

from common.config import LivenessConfig
from common.messages import Load

EJECT_AFTER_LIMITS = 2.0
SILENCE_LIMITS = 3.0


def step_limit(liveness: LivenessConfig, load: Load) -> float:
    """Seconds that a step of this engine may take before the engine is stalled."""
    if not load.step_ms_p99:
        return liveness.stall_ms / 1000 * liveness.stall_steps
    return max(liveness.stall_ms / 1000, liveness.stall_steps * load.step_ms_p99 / 1000)


def stalled(liveness: LivenessConfig, load: Load) -> bool:
    """Only running requests count, because a request that waits for KV makes no steps. An engine
    without work is asked for a sign of life now and then, and has more time to give it."""
    limit = step_limit(liveness, load)
    if load.silent_ms / 1000 > SILENCE_LIMITS * limit:
        return True
    return load.running > 0 and load.step_age_ms / 1000 > limit


def must_eject(liveness: LivenessConfig, load: Load) -> bool:
    """Whether the engine is stalled for so long that its requests are better off elsewhere."""
    limit = EJECT_AFTER_LIMITS * step_limit(liveness, load)
    return load.running > 0 and load.step_age_ms / 1000 > limit


def probation_seconds(liveness: LivenessConfig, flaps: int) -> float:
    """How long a worker with so many recent flaps must show no fault; 0 = it needs no probation."""
    if not flaps:
        return 0.0
    doublings = min(flaps - 1, 20)
    return min(liveness.proof_ms_max, liveness.proof_ms * float(2**doublings)) / 1000


def may_eject(liveness: LivenessConfig, pool: int, ejected: int) -> bool:
    """Whether one more worker of a pool of this size may be ejected on suspicion alone. If many
    seem dead at once, the fault is likelier the router's own or the network's."""
    return ejected < max(1, int(pool * liveness.eject_share_max))
