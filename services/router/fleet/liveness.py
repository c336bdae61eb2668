"""When a worker is suspected and when it is trusted again: the limits, and pure questions of them.

There are two reasons for suspicion. Silence: no message came for a while. A stalled engine: the
worker's daemon beats and reports that its engine, which has requests, makes no step. A suspected
worker gets nothing new; if the fault lasts, the worker is ejected. It is trusted again after a
probation without a fault, which gets longer with each flap.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.config import Config
from common.messages import Load

EJECT_AFTER_LIMITS = 2.0
SILENCE_LIMITS = 3.0


@dataclass(frozen=True, slots=True)
class Liveness:
    """`[router.liveness]` of the fleet file, in seconds."""

    #: Share of `worker_timeout` after which a silent worker is suspected.
    suspect_share: float = 0.5
    #: Least time without a step after which an engine is stalled.
    stall_seconds: float = 1.0
    #: An engine is stalled after this many of its slow steps (p99).
    stall_steps: float = 10.0
    #: Share of a pool that may be ejected or excluded at a time.
    eject_share_max: float = 0.34
    #: Probation after the first flap; each further flap doubles it.
    proof_seconds: float = 1.0
    #: Longest probation.
    proof_seconds_max: float = 30.0
    #: Flaps are forgotten after this long without one.
    flap_window_seconds: float = 60.0
    #: A Tick later than this means that the router itself was stopped.
    late_tick_seconds: float = 1.0
    #: How long the requests of a gateway that is out of reach are kept.
    gateway_grace_seconds: float = 2.0
    #: A prompt may be on fewer dying workers than this (`prompt_quarantine.py`).
    deaths_max: int = 2


def from_config(config: Config) -> Liveness:
    section = config.router.liveness
    return Liveness(
        suspect_share=section.suspect_share,
        stall_seconds=section.stall_ms / 1000,
        stall_steps=section.stall_steps,
        eject_share_max=section.eject_share_max,
        proof_seconds=section.proof_ms / 1000,
        proof_seconds_max=section.proof_ms_max / 1000,
        flap_window_seconds=section.flap_window_ms / 1000,
        late_tick_seconds=section.late_tick_ms / 1000,
        gateway_grace_seconds=section.gateway_grace_ms / 1000,
        deaths_max=section.deaths_max,
    )


def step_limit(liveness: Liveness, load: Load) -> float:
    """Seconds that a step of this engine may take before the engine is stalled."""
    if not load.step_ms_p99:
        return liveness.stall_seconds * liveness.stall_steps
    return max(liveness.stall_seconds, liveness.stall_steps * load.step_ms_p99 / 1000)


def stalled(liveness: Liveness, load: Load) -> bool:
    """Only running requests count, because a request that waits for KV makes no steps. An engine
    without work is asked for a sign of life now and then, and has more time to give it."""
    limit = step_limit(liveness, load)
    if load.silent_ms / 1000 > SILENCE_LIMITS * limit:
        return True
    return load.running > 0 and load.step_age_ms / 1000 > limit


def must_eject(liveness: Liveness, load: Load) -> bool:
    """Whether the engine is stalled for so long that its requests are better off elsewhere."""
    limit = EJECT_AFTER_LIMITS * step_limit(liveness, load)
    return load.running > 0 and load.step_age_ms / 1000 > limit


def probation_seconds(liveness: Liveness, flaps: int) -> float:
    """How long a worker with so many recent flaps must show no fault; 0 = it needs no probation."""
    if not flaps:
        return 0.0
    doublings = min(flaps - 1, 20)
    return min(liveness.proof_seconds_max, liveness.proof_seconds * float(2**doublings))


def may_eject(liveness: Liveness, pool: int, ejected: int) -> bool:
    """Whether one more worker of a pool of this size may be ejected on suspicion alone. If many
    seem dead at once, the fault is likelier the router's own or the network's."""
    return ejected < max(1, int(pool * liveness.eject_share_max))
