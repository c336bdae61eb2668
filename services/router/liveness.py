"""When a worker is doubted and when it is trusted again: the numbers, and pure questions of them.

Doubt has two sources. Silence: nothing was heard for a while. A stalled engine: its daemon beats
and says itself that the engine, busy, has not stepped. A doubted worker first gets nothing new, and
if it goes on, is ejected; trust comes back only with time (`proof_seconds`).
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

    suspect_share: float = 0.5
    stall_seconds: float = 1.0
    stall_steps: float = 10.0
    eject_share_max: float = 0.34
    proof_seconds: float = 1.0
    proof_seconds_max: float = 30.0
    flap_window_seconds: float = 60.0
    late_tick_seconds: float = 1.0
    gateway_grace_seconds: float = 2.0
    deaths_max: int = 2


def from_config(config: Config) -> Liveness:
    said = config.router.liveness
    return Liveness(
        suspect_share=said.suspect_share,
        stall_seconds=said.stall_ms / 1000,
        stall_steps=said.stall_steps,
        eject_share_max=said.eject_share_max,
        proof_seconds=said.proof_ms / 1000,
        proof_seconds_max=said.proof_ms_max / 1000,
        flap_window_seconds=said.flap_window_ms / 1000,
        late_tick_seconds=said.late_tick_ms / 1000,
        gateway_grace_seconds=said.gateway_grace_ms / 1000,
        deaths_max=said.deaths_max,
    )


def step_limit(liveness: Liveness, load: Load) -> float:
    """Seconds that a step of this engine may take before it is doubted."""
    if not load.step_ms_p99:
        return liveness.stall_seconds * liveness.stall_steps
    return max(liveness.stall_seconds, liveness.stall_steps * load.step_ms_p99 / 1000)


def stalled(liveness: Liveness, load: Load) -> bool:
    """Only running requests count: one that waits for KV from elsewhere makes no steps. One that
    has nothing to do is asked now and then how it does, and has more time to say so."""
    limit = step_limit(liveness, load)
    if load.silent_ms / 1000 > SILENCE_LIMITS * limit:
        return True
    return load.running > 0 and load.step_age_ms / 1000 > limit


def hopeless(liveness: Liveness, load: Load) -> bool:
    """Stalled for so long that its requests are better off elsewhere."""
    limit = EJECT_AFTER_LIMITS * step_limit(liveness, load)
    return load.running > 0 and load.step_age_ms / 1000 > limit


def proof_needed(liveness: Liveness, flaps: int) -> float:
    """Seconds for which a worker doubted `flaps` times of late must be sound."""
    if not flaps:
        return 0.0
    doublings = min(flaps - 1, 20)
    return min(liveness.proof_seconds_max, liveness.proof_seconds * float(2**doublings))


def may_eject(liveness: Liveness, pool: int, ejected: int) -> bool:
    """Whether one more of a pool of this size may be given up on suspicion alone: if many look
    dead at once, the fault is likelier the router's own or the network's."""
    return ejected < max(1, int(pool * liveness.eject_share_max))
